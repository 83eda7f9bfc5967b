//! The table of the name service against an oracle that reads it byte by byte (specification, §12).
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipl_core::fuzzing;

/// An address, then names.
struct Entry {
    /// It is one plug-in's, and not the one that asks here.
    foreign: bool,
    address: [u8; 6],
    names: Vec<String>,
}

/// Whether the first word begins with the name of a plug-in, and what follows that name.
fn without_plugin(word: &str) -> (bool, &str) {
    let end = word.find(':').unwrap_or(0);
    let (name, rest) = word.split_at(end);
    let letters = name
        .chars()
        .all(|c| c == '_' || c.is_ascii_digit() || c.is_ascii_alphabetic());
    let begins = name.chars().next().is_some_and(|c| c.is_ascii_alphabetic());
    if (end >= 3 || name == "ip") && letters && begins {
        (true, &rest[1..])
    } else {
        (false, word)
    }
}

/// One line as the specification describes it; `None` inside for a line to be reported.
fn entry(line: &str) -> Option<Option<Entry>> {
    let words: Vec<&str> = line
        .split(char::is_whitespace)
        .filter(|word| !word.is_empty())
        .collect();
    let (first, names) = words.split_first()?;
    let (foreign, first) = without_plugin(first);
    if first.parse::<std::net::SocketAddr>().is_ok() {
        // An address of the plug-in `ip`, unless another one is named; none of those asks here.
        let good = names.iter().all(|name| name.len() <= 255) && !names.is_empty();
        return Some(good.then(|| Entry {
            foreign: true,
            address: [0; 6],
            names: Vec::new(),
        }));
    }
    let mut address = Vec::new();
    let (mut digits, mut value) = (0, 0u32);
    for letter in first.chars().chain([':']) {
        match letter {
            ':' | '-' => {
                if digits == 0 || digits > 2 {
                    return Some(None);
                }
                address.push(value as u8);
                (digits, value) = (0, 0);
            }
            digit => {
                let Some(digit) = digit.to_digit(16).filter(|_| digit.is_ascii()) else {
                    return Some(None);
                };
                value = value.wrapping_mul(16).wrapping_add(digit);
                digits += 1;
            }
        }
    }
    let good = names.iter().all(|name| name.len() <= 255) && !names.is_empty();
    let Ok(address) = <[u8; 6]>::try_from(address) else {
        return Some(None);
    };
    Some(good.then(|| Entry {
        foreign,
        address,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
    }))
}

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let table = fuzzing::Table::read(&text);
    let (mut known, mut bad) = (Vec::new(), Vec::new());
    for (number, line) in text.split('\n').enumerate() {
        let before = line.find('#').map_or(line, |comment| &line[..comment]);
        match entry(before) {
            Some(Some(good)) if good.foreign => {}
            Some(Some(good)) => known.push((good.address, good.names)),
            Some(None) => bad.push(number + 1),
            None => {}
        }
    }
    assert_eq!(table.bad, bad, "lines to be reported");
    let equal = |one: &str, two: &str| one.to_ascii_lowercase() == two.to_ascii_lowercase();
    let search = |name: &str| -> Vec<[u8; 6]> {
        known
            .iter()
            .filter(|(_, names)| names.iter().any(|known| equal(known, name)))
            .map(|(address, _)| *address)
            .collect()
    };
    for name in known.iter().flat_map(|(_, names)| names).take(64) {
        for index in 0..3 {
            let mut expected = search(name).get(index).copied();
            if let (None, Some((host, _))) = (expected, name.split_once('.')) {
                expected = search(host).get(index).copied();
            }
            assert_eq!(
                table.by_name(name, index),
                expected.as_ref().map(|a| &a[..]),
                "{name} {index}"
            );
        }
    }
    for (address, _) in known.iter().take(64) {
        let first = known
            .iter()
            .find(|(other, _)| other == address)
            .map(|(_, names)| names[0].as_str());
        assert_eq!(table.by_address(address), first);
    }
});

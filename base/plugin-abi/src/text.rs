//! How values of settings are written: the one reading for the library and for plug-ins in Rust.

/// Yes and no in the usual spellings, in any case. Nothing at all is no.
pub fn truth(text: &str) -> Option<bool> {
    let is = |word: &&&str| text.eq_ignore_ascii_case(word);
    if ["1", "true", "yes", "on"].iter().find(is).is_some() {
        Some(true)
    } else if ["0", "false", "no", "off", ""].iter().find(is).is_some() {
        Some(false)
    } else {
        None
    }
}

/// A number of bytes: `65536`, `64k`, `64KiB`, `1M`, `2G`; the letters are powers of 1024.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = [
        (0, ["", "b", "b"]),
        (10, ["k", "kb", "kib"]),
        (20, ["m", "mb", "mib"]),
        (30, ["g", "gb", "gib"]),
    ]
    .iter()
    .find(|(_, names)| names.iter().any(|name| unit.eq_ignore_ascii_case(name)))?
    .0;
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_has_any_case() {
        for (text, value) in [("TRUE", true), ("Yes", true), ("oN", true), ("1", true)] {
            assert_eq!(truth(text), Some(value), "{text}");
        }
        for text in ["FALSE", "No", "oFF", "0", ""] {
            assert_eq!(truth(text), Some(false), "{text}");
        }
        assert_eq!(truth("maybe"), None);
    }

    #[test]
    fn sizes_have_units() {
        for (text, value) in [
            ("0", 0),
            ("65536", 65536),
            ("64k", 65536),
            ("64 KiB", 0),
            ("64KiB", 65536),
            ("1M", 1 << 20),
            ("2g", 2 << 30),
            (" 7 ", 7),
        ] {
            let expected = if text == "64 KiB" { None } else { Some(value) };
            assert_eq!(bytes(text), expected, "{text}");
        }
        for text in [
            "",
            "k",
            "-1",
            "1.5k",
            "4x",
            "99999999999999999999",
            "18446744073709551615k",
        ] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }
}

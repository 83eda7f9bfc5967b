//! What the library, the plug-ins and the agent say at `warn` and `error` stands in docs/TROUBLESHOOTING.md, and what
//! stands there is still said. Text against text; nothing is run.

use std::collections::BTreeMap;

use vipl_ctest::{product_sources, source};

/// Words of a message that the index names it by.
const WORDS: usize = 7;
/// Fixed letters that a literal needs to be recognised in a line.
const LETTERS: usize = 10;

/// The texts of what is installed.
fn sources() -> impl Iterator<Item = String> {
    let sources = product_sources(&["base", "libvipl", "plugins", "kagent"]);
    sources.into_iter().map(|(_, text)| text)
}

/// The string literal that begins at the first quote, and what follows it. Placeholders become `…`.
fn literal(text: &str) -> Option<(String, &str)> {
    let begin = text.find('"')? + 1;
    let (mut out, mut inside) = (String::new(), false);
    let mut chars = text[begin..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &text[begin + at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => out.push(' '),
                // A continued line: its indentation is no part of the text.
                '\n' => {
                    while chars.as_str().starts_with(' ') {
                        chars.next();
                    }
                }
                other => out.push(other),
            },
            '{' if !inside => {
                inside = true;
                out.push('…');
            }
            '}' if inside => inside = false,
            _ if inside => {}
            c => out.push(c),
        }
    }
    None
}

/// First words of a message; `None` if it is made of placeholders alone.
fn first_words(message: &str) -> Option<String> {
    let words: Vec<&str> = message.split_whitespace().take(WORDS).collect();
    let fixed = words.iter().filter(|word| !word.contains('…')).count();
    (fixed >= 2).then(|| words.join(" "))
}

/// Messages of the sources with their levels.
fn said() -> BTreeMap<String, &'static str> {
    let mut found = BTreeMap::new();
    for text in sources() {
        // The method may be in the line after its receiver.
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        let text = lines.join("\n").replace("\n.", ".");
        for (marker, level, skipped) in [
            ("log::warn!(", "warn", 1),
            ("log::error!(", "error", 1),
            ("log_failure!(", "warn", 1),
            ("log_mistake!(", "warn", 1),
            ("log.warn(", "warn", 1),
            ("log.error(", "error", 1),
            (".log(VIPL_LOG_WARN,", "warn", 0),
            (".log(VIPL_LOG_ERROR,", "error", 0),
        ] {
            for (at, _) in text.match_indices(marker) {
                let call = &text[at + marker.len()..];
                let end = call
                    .find(");\n")
                    .or_else(|| call.find("),\n"))
                    .unwrap_or(call.len());
                let mut rest = &call[..end];
                for _ in 0..skipped {
                    rest = literal(rest).map_or("", |(_, rest)| rest);
                }
                if let Some(words) = literal(rest).and_then(|(message, _)| first_words(&message)) {
                    found.insert(words, level);
                }
            }
        }
    }
    found
}

/// Counters have names that a user meets; each is in the table of docs/TOOLS.md, and the other way round.
#[test]
fn every_counter_is_in_the_tools_page() {
    let mut made = std::collections::BTreeSet::new();
    for text in sources() {
        for (at, _) in text.match_indices("counter(") {
            let call = &text[at..text.len().min(at + 80)];
            let name = call.split_once("c\"").and_then(|(before, rest)| {
                let one_call = !before.contains(')');
                one_call
                    .then(|| rest.split_once('"').map(|(name, _)| name))
                    .flatten()
            });
            made.extend(name.map(str::to_owned));
        }
    }
    let page = std::fs::read_to_string(source("../docs/TOOLS.md")).expect("the page");
    let table = page
        .split_once("| counter | of | counts |")
        .map_or("", |(_, table)| table);
    let rows = table
        .lines()
        .skip(2)
        .map_while(|line| line.strip_prefix("| `"));
    let listed: std::collections::BTreeSet<String> = rows
        .filter_map(|row| Some(row.split_once('`')?.0.to_owned()))
        .collect();
    assert!(made.len() > 15, "{made:?}");
    assert_eq!(made, listed);
}

fn document() -> String {
    std::fs::read_to_string(source("../docs/TROUBLESHOOTING.md")).expect("the document")
}

/// Rows of the index: first words and level.
fn index(document: &str) -> BTreeMap<String, String> {
    let rows = document.lines().filter_map(|line| {
        let (words, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let level = rest.split(' ').next()?;
        ["warn", "error"]
            .contains(&level)
            .then(|| (words.to_owned(), level.to_owned()))
    });
    rows.collect()
}

#[test]
fn every_message_is_in_the_index_and_the_other_way_round() {
    let (said, index) = (said(), index(&document()));
    assert!(said.len() > 40, "only {} messages were found", said.len());
    let missing: Vec<String> = said
        .iter()
        .filter(|(words, level)| index.get(*words).map(String::as_str) != Some(**level))
        .map(|(words, level)| format!("| `{words}` | {level} | [](#) |"))
        .collect();
    let gone: Vec<&String> = index
        .keys()
        .filter(|words| !said.contains_key(*words))
        .collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not in the index of docs/TROUBLESHOOTING.md:\n{}\nnot in the code any more: {gone:#?}",
        missing.join("\n")
    );
}

/// Each quoted line is one that some literal of the code can make.
#[test]
fn every_quoted_line_can_still_be_said() {
    let mut patterns: Vec<Vec<String>> = Vec::new();
    for text in sources() {
        let mut rest = text.as_str();
        while let Some((message, after)) = literal(rest) {
            let parts: Vec<String> = message.split('…').map(str::to_owned).collect();
            let letters: usize = parts.iter().map(|part| part.trim().len()).sum();
            if letters >= LETTERS {
                patterns.push(parts);
            }
            rest = after;
        }
    }
    let can_be = |line: &str| {
        patterns.iter().any(|parts| {
            let mut rest = line;
            parts.iter().all(|part| match rest.find(part.as_str()) {
                Some(at) => {
                    rest = &rest[at + part.len()..];
                    true
                }
                None => false,
            })
        })
    };
    let document = document();
    let (mut quoted, mut unsaid) = (0, Vec::new());
    for line in document.lines() {
        let Some((_, said)) = line
            .strip_prefix("vipl[")
            .or_else(|| line.strip_prefix("vipkad["))
            .and_then(|line| line.split_once("] "))
        else {
            continue;
        };
        let level = said.split(' ').next().unwrap_or_default();
        if !["warn", "error"].contains(&level) || said.contains('…') {
            continue;
        }
        quoted += 1;
        let text = said.split_once(": ").map_or("", |(_, text)| text);
        // Names of asynchronous errors are no literals.
        if !text.starts_with("VIP_ERROR_") && !can_be(text) {
            unsaid.push(line);
        }
    }
    assert!(unsaid.is_empty(), "nothing in the code says: {unsaid:#?}");
    assert!(quoted > 30, "only {quoted} quoted lines");
}

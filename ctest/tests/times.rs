//! Every constant of time in the product is in the table of docs/TESTING.md, with its value. Text against text; nothing is
//! run.

use std::collections::BTreeMap;

use vipl_ctest::{product_sources, source};

/// Ends of the names of constants that are times, whatever their type.
const ENDINGS: [&str; 6] = ["_NS", "_MS", "_US", "_US_MAX", "_SECONDS", "_TICKS"];
/// Not times: units.
const UNITS: [&str; 2] = ["NS_PER_MS", "MS"];

/// File and name of each constant of time of a source, with its value as it stands there.
fn constants(file: &str, text: &str, found: &mut BTreeMap<(String, String), String>) {
    let mut said = String::new();
    let mut rest = text;
    while let Some((line, after)) = rest.split_once('\n') {
        let code = line.trim_start();
        let declared = code
            .trim_start_matches("pub ")
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .strip_prefix("const ");
        if let Some(comment) = code.strip_prefix("///") {
            said += comment;
        } else if !code.starts_with("#[") {
            // The value may go on in the next line.
            if let Some((name, value)) = declared.and_then(|text| text.split_once(':')) {
                let begin = rest.len() - after.len() - 1 - value.len();
                let whole = rest[begin..].split(';').next().unwrap_or_default();
                let (kind, value) = whole.split_once('=').unwrap_or_default();
                let kind = kind.trim();
                let is_time = kind == "Duration"
                    || ENDINGS.iter().any(|ending| name.ends_with(ending))
                    || kind == "u64" && value.contains("NS_PER_MS")
                    || kind == "u64" && said.contains("seconds");
                if is_time && !UNITS.contains(&name) {
                    let value: Vec<&str> = value.split_whitespace().collect();
                    let value = value.join(" ").replace("Duration::", "");
                    found.insert((file.to_owned(), name.to_owned()), value);
                }
            }
            said.clear();
        }
        rest = after;
    }
}

#[test]
fn the_table_of_times_is_the_code() {
    let root = source("..");
    let mut found = BTreeMap::new();
    for (path, text) in product_sources(&["libvipl", "plugins", "kagent", "mpi", "base"]) {
        let file = path.strip_prefix(&root).expect("a source").display();
        constants(&file.to_string(), &text, &mut found);
    }
    assert!(found.len() > 80, "only {} constants", found.len());
    let document = std::fs::read_to_string(source("../docs/TESTING.md")).expect("the document");
    let mut table = BTreeMap::new();
    for line in document.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, file, name, value, bounds, hurts, _] = cells[..] else {
            continue;
        };
        let plain = |text: &str| text.trim_matches('`').to_owned();
        if file.ends_with(".rs`") {
            assert!(!bounds.is_empty() && !hurts.is_empty(), "{line}");
            table.insert((plain(file), plain(name)), plain(value));
        }
    }
    let missing: Vec<String> = found
        .iter()
        .filter(|(place, value)| table.get(*place) != Some(*value))
        .map(|((file, name), value)| {
            format!("| `{file}` | `{name}` | `{value}` | BOUNDS WHAT | MAY HURT WHOM |")
        })
        .collect();
    let gone: Vec<_> = table
        .keys()
        .filter(|place| !found.contains_key(*place))
        .collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not in the table of docs/TESTING.md:\n{}\nnot in the code any more: {gone:#?}",
        missing.join("\n")
    );
}

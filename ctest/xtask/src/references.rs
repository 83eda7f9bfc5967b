//! `cargo xtask references`: every reference to the specification resolves.
//!
//! Code, tests and documents cite `docs/SPECIFICATION.md` by section (`§3.8`) and by id (`R7`, `E9`,
//! `XFER-02`). This check reads all source and text files of the tree and reports each citation of a
//! section or id that the specification does not have.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::workspace::root;

const SPECIFICATION: &str = "docs/SPECIFICATION.md";
/// Files that may cite the specification.
const EXTENSIONS: &[&str] = &["rs", "c", "cpp", "h", "md", "txt", "toml", "lua"];
/// The checker's own examples of wrong references are not references.
const SELF: &str = "ctest/xtask/src/references.rs";

/// What can be cited.
#[derive(Default)]
struct Targets {
    sections: BTreeSet<String>,
    ids: BTreeSet<String>,
}

/// Prints every reference that does not resolve, and fails if there is one.
pub(crate) fn run() -> Result<()> {
    let targets = Targets::of(&fs::read_to_string(root().join(SPECIFICATION))?);
    let mut files = Vec::new();
    collect(&root(), &mut files)?;
    let (mut count, mut wrong) = (0, 0);
    for file in files {
        let text = fs::read_to_string(&file)?;
        let name = file.strip_prefix(root()).unwrap_or(&file);
        for (number, line) in text.lines().enumerate() {
            for reference in references(line, &targets) {
                count += 1;
                if !targets.has(&reference) {
                    wrong += 1;
                    println!(
                        "{}:{}: {SPECIFICATION} has no {reference}",
                        name.display(),
                        number + 1
                    );
                }
            }
        }
    }
    if wrong > 0 {
        return Err(
            format!("{wrong} of {count} references to the specification do not resolve").into(),
        );
    }
    println!("{count} references to the specification resolve");
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" && name != "corpus" {
                collect(&path, files)?;
            }
        } else if path
            .extension()
            .is_some_and(|e| EXTENSIONS.iter().any(|known| e == *known))
            && !path.ends_with(SELF)
        {
            files.push(path);
        }
    }
    Ok(())
}

impl Targets {
    /// Sections are the numbers of headings; ids stand at the beginning of an item or of a table row.
    fn of(specification: &str) -> Self {
        let mut targets = Self::default();
        for line in specification.lines() {
            if let Some(heading) = line
                .strip_prefix("## ")
                .or_else(|| line.strip_prefix("### "))
            {
                let number = heading.split(' ').next().unwrap_or_default();
                let number = number.trim_end_matches('.');
                if number.starts_with(|c: char| c.is_ascii_digit()) {
                    targets.sections.insert(number.to_owned());
                }
            } else if let Some(item) = line.strip_prefix("- ").or_else(|| line.strip_prefix("| ")) {
                let word = item.split([' ', ':']).next().unwrap_or_default();
                if is_id(word) || is_rule(word) {
                    targets.ids.insert(word.to_owned());
                }
            }
        }
        targets
    }

    fn has(&self, reference: &str) -> bool {
        match reference.strip_prefix('§') {
            Some(section) => self.sections.contains(section),
            None => self.ids.contains(reference),
        }
    }

    /// Whether the specification has ids of this group, so that `AES-12` is none of them.
    fn has_group(&self, id: &str) -> bool {
        let group = id.trim_end_matches(|c: char| c.is_ascii_digit());
        self.ids.iter().any(|known| known.starts_with(group))
    }
}

/// All references in a line.
fn references(line: &str, targets: &Targets) -> Vec<String> {
    let mut found = Vec::new();
    for (place, _) in line.match_indices('§') {
        let rest = line[place + '§'.len_utf8()..].trim_start();
        let number: String = rest
            .chars()
            .take_while(|c| c.is_ascii_digit() || *c == '.')
            .collect();
        let number = number.trim_matches('.');
        if !number.is_empty() && !cites_another_document(&line[..place]) {
            found.push(format!("§{number}"));
        }
    }
    found.extend(
        line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
            .filter(|word| is_rule(word) || is_id(word) && targets.has_group(word))
            .map(str::to_owned),
    );
    found
}

/// Whether what stands before a section sign names an RFC.
fn cites_another_document(before: &str) -> bool {
    let mut words = before.split_whitespace().rev();
    words.next();
    words.next() == Some("RFC")
}

/// `XFER-02`.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(group, number)| {
        group.len() >= 2
            && group.bytes().all(|b| b.is_ascii_uppercase())
            && number.len() == 2
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// `R7` or `E9`: a rule for all functions, a row of the error table.
fn is_rule(word: &str) -> bool {
    word.strip_prefix(['R', 'E'])
        .is_some_and(|n| !n.is_empty() && n.len() <= 2 && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# T\n## 3. Functions\n### 3.8 VipConnectWait\n- R7 A timeout\n- CQ-01: an entry\n| E9 | x |\n";

    #[test]
    fn the_specification_says_what_can_be_cited() {
        let targets = Targets::of(TEXT);
        for known in ["§3", "§3.8", "R7", "E9", "CQ-01"] {
            assert!(targets.has(known), "{known}");
        }
        for unknown in ["§3.9", "§33", "R8", "CQ-02"] {
            assert!(!targets.has(unknown), "{unknown}");
        }
    }

    #[test]
    fn references_are_found_in_any_line() {
        let targets = Targets::of(TEXT);
        assert_eq!(
            references(
                "// spec §3.8, §3.9 to §4 (R7, E19, CQ-01, CQ-77).",
                &targets
            ),
            ["§3.8", "§3.9", "§4", "R7", "E19", "CQ-01", "CQ-77"]
        );
        let none = "RFC 8439 §2.3.2; AES-12; CQ-123; §";
        assert_eq!(references(none, &targets), Vec::<String>::new());
    }
}

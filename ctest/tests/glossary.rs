//! Comments, names and documents use the words of docs/GLOSSARY.md. Text against text; nothing is run.

use std::path::{Path, PathBuf};

use vipl_ctest::source;

/// A row's word of the second column.
struct Wrong {
    /// With a blank before and after it.
    word: String,
    say: String,
    in_names: bool,
    in_text: bool,
}

/// The table of words in docs/GLOSSARY.md.
fn table() -> Vec<Wrong> {
    let page = std::fs::read_to_string(source("../docs/GLOSSARY.md")).expect("the page");
    let (_, table) = page.split_once("| say | not | in |\n").expect("the table");
    let mut words = Vec::new();
    for row in table
        .lines()
        .skip(1)
        .map_while(|line| line.strip_prefix("| "))
    {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [say, not, places] = cells[..] else {
            panic!("{row}");
        };
        for word in not.split(", ") {
            words.push(Wrong {
                word: format!(" {} ", word.trim_matches('`')),
                say: say.to_owned(),
                in_names: places.contains("names"),
                in_text: places.contains("text"),
            });
        }
    }
    words
}

/// Sources and documents below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if name.starts_with('.') || ["target", "SPECIFICATION.md", "GLOSSARY.md"].contains(&&*name)
        {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| {
            ["rs", "c", "h", "cpp", "md"]
                .iter()
                .any(|e| extension == *e)
        }) {
            files.push(path);
        }
    }
}

/// The code of a source and its comments, each with the lines of the whole. Strings are in neither.
fn code_and_comments(text: &str) -> (String, String) {
    let (mut code, mut comments) = (String::new(), String::new());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (length, is_comment) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), true)
        } else if rest.starts_with("/*") {
            (rest.find("*/").map_or(rest.len(), |end| end + 2), true)
        } else if let Some(length) = string(rest) {
            code.extend(rest[..length].chars().filter(|c| *c == '\n'));
            comments.extend(rest[..length].chars().filter(|c| *c == '\n'));
            rest = &rest[length..];
            continue;
        } else {
            // A whole name, so that its `r` is not taken for the beginning of a string.
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let name = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            (name.max(first.len_utf8()), false)
        };
        let (piece, after) = rest.split_at(length);
        let lines: String = piece.chars().filter(|c| *c == '\n').collect();
        if is_comment {
            comments += piece;
            code += &lines;
        } else {
            code += piece;
            comments += &lines;
        }
        rest = after;
    }
    (code, comments)
}

/// Length of the string or character that the text begins with.
fn string(text: &str) -> Option<usize> {
    let raw = text.trim_start_matches(['b', 'c']).strip_prefix('r');
    if let Some(raw) = raw.filter(|_| text.len() > 2) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let begin = text.len() - raw.len() + hashes + 1;
            let end = format!("\"{}", "#".repeat(hashes));
            return Some(
                text[begin..]
                    .find(&end)
                    .map_or(text.len(), |at| begin + at + end.len()),
            );
        }
    }
    let quoted = text
        .strip_prefix(['b', 'c'])
        .filter(|rest| rest.starts_with('"'))
        .unwrap_or(text);
    let quote = quoted.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let mut chars = quoted[1..].char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            // A lifetime, or a character of a number in C.
            _ if quote == '\'' && at > 0 && c != '\'' && !quoted[1..].starts_with('\\') => {
                return None;
            }
            c if c == quote => return Some(text.len() - quoted.len() + 1 + at + 1),
            _ => {}
        }
    }
    None
}

/// The prose of a document: no block of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let keep = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            String::new()
        } else {
            line.to_owned()
        }
    };
    text.lines().map(keep).collect::<Vec<_>>().join("\n")
}

/// Its words, with a blank before and after each; no quotation and no `code`.
fn spoken(line: &str) -> String {
    let mut said = line.to_owned();
    for quote in ['`', '"'] {
        let parts: Vec<&str> = said.split(quote).collect();
        let outside: Vec<&str> = parts.into_iter().step_by(2).collect();
        said = outside.join(" ");
    }
    spaced(said.split(|c: char| !c.is_alphanumeric() && c != '_'))
}

/// The words of each name in a line of code: `is_gone`, `IsGone` and `IS_GONE` are "is gone".
fn named(line: &str) -> Vec<String> {
    let names = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let parts = |name: &str| {
        let mut spread = String::new();
        for (at, c) in name.char_indices() {
            let follows_small = name[..at].ends_with(|c: char| c.is_lowercase());
            if c == '_' || c.is_uppercase() && follows_small {
                spread.push(' ');
            }
            if c != '_' {
                spread.push(c);
            }
        }
        spaced(spread.split(' '))
    };
    names.filter(|name| !name.is_empty()).map(parts).collect()
}

fn spaced<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut all = " ".to_owned();
    for word in words.filter(|word| !word.is_empty()) {
        all += &word.to_lowercase();
        all.push(' ');
    }
    all
}

/// Each use of a wrong word in a file, as a line to print.
fn check(path: &str, text: &str, table: &[Wrong], found: &mut Vec<String>) {
    let (code, comments) = if path.ends_with(".md") {
        (String::new(), prose(text))
    } else {
        code_and_comments(text)
    };
    let mut add = |number: usize, said: &str, is_name: bool| {
        for wrong in table.iter().filter(|wrong| {
            if is_name {
                wrong.in_names
            } else {
                wrong.in_text
            }
        }) {
            if said.contains(&wrong.word) {
                found.push(format!(
                    "{path}:{}:{}: say {}",
                    number + 1,
                    wrong.word,
                    wrong.say
                ));
            }
        }
    };
    for (number, line) in comments.lines().enumerate() {
        add(number, &spoken(line), false);
    }
    for (number, line) in code.lines().enumerate() {
        for name in named(line) {
            add(number, &name, true);
        }
    }
}

#[test]
fn the_words_are_those_of_the_glossary() {
    let (root, table) = (source(".."), table());
    assert!(table.len() > 30, "only {} words", table.len());
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(files.len() > 500, "only {} files", files.len());
    let mut found = Vec::new();
    for file in files {
        let path = file
            .strip_prefix(&root)
            .expect("a file")
            .display()
            .to_string();
        let text = std::fs::read_to_string(&file).expect("a text");
        check(&path, &text, &table, &mut found);
    }
    let few = &found[..found.len().min(60)];

    assert!(
        found.is_empty(),
        "{} words, docs/GLOSSARY.md: {few:#?}",
        found.len()
    );
}

#[test]
fn a_wrong_word_is_found() {
    let table = table();
    let found = |path: &str, text: &str| {
        let mut found = Vec::new();
        check(path, text, &table, &mut found);
        found.len()
    };
    assert_eq!(found("a.rs", "fn f() {}\n// The partner sleeps.\n"), 1);
    assert_eq!(
        found("a.rs", "fn is_gone(NoPartner: T, x: PARTNER_MAX) {}"),
        3
    );
    assert_eq!(found("a.c", "/* One\n * lap. */ int laps;"), 2);
    assert_eq!(
        found(
            "a.md",
            "The road,\nand `road`, \"road\".\n```text\nroad\n```\nroad"
        ),
        2
    );
    let right = "// An overlap; right away; `nobody`, \"nobody\", tells.\nf(\"partner \\\" lap\", b\"road\", r#\"\"road\"\"#, '\"', 'r', &'a x);";
    assert_eq!(found("a.rs", right), 0);
    assert_eq!(found("a.rs", "f('\\'', '\\\\', \"//\"); let told = 1;"), 1);
}

//! Takes the text of cbindgen apart into typedefs, enumerations, structures and functions.

use crate::Result;

/// One declaration.
pub(crate) struct Item {
    /// The `#if` line around it.
    pub guard: Option<String>,
    /// Its comment, line by line, as in the Rust source.
    pub doc: Vec<String>,
    /// Its C name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
}

/// The kinds of declarations.
pub(crate) enum Kind {
    /// `typedef …;`
    Alias(String),
    /// Enumerators.
    Enum(Vec<Member>),
    /// Members of a `struct` or `union` (the keyword).
    Record(&'static str, Vec<Member>),
    /// `… name(…);`
    Function(String),
}

/// An enumerator or a member.
pub(crate) struct Member {
    /// Its comment.
    pub doc: Vec<String>,
    /// Its text, without the `,` or `;`.
    pub text: String,
}

impl Member {
    /// The name it declares.
    pub(crate) fn name(&self) -> &str {
        let text = match self.text.split_once("(*") {
            Some((_, rest)) => rest.split(')').next().unwrap_or(rest),
            None => self
                .text
                .split(['[', '='])
                .next()
                .unwrap_or(&self.text)
                .trim_end(),
        };
        last_word(text)
    }
}

impl Item {
    /// Where it belongs: types in the order of the source, functions in the order of the
    /// specification.
    pub(crate) fn place(&self, source: &str) -> (u32, u32, u32, usize) {
        let (rank, word) = match self.kind {
            Kind::Alias(_) => (0, "type"),
            Kind::Enum(_) => (1, "enum"),
            Kind::Record(keyword, _) => (2, keyword),
            Kind::Function(_) => (3, "fn"),
        };
        let (chapter, section) = match self.kind {
            Kind::Function(_) => self.section().unwrap_or((u32::MAX, 0)),
            _ => (0, 0),
        };
        let found = source
            .match_indices(&format!("{word} {}", self.name))
            .find(|(at, text)| !source[at + text.len()..].starts_with(is_word))
            .map_or(usize::MAX, |(at, _)| at);
        (rank, chapter, section, found)
    }

    /// The section of the specification that its comment names.
    fn section(&self) -> Option<(u32, u32)> {
        let text = self.doc.join(" ");
        let number: &str = text
            .split_once("spec §")?
            .1
            .split(|c| !is_number(c))
            .next()?;
        let (chapter, section) = number.trim_end_matches('.').split_once('.')?;
        Some((chapter.parse().ok()?, section.parse().ok()?))
    }
}

fn is_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn last_word(text: &str) -> &str {
    &text[text.rfind(|c| !is_word(c)).map_or(0, |at| at + 1)..]
}

/// Takes the whole text apart.
pub(crate) fn parse(text: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for block in blocks(text) {
        if let Some(item) = item(&block)? {
            items.push(item);
        }
    }
    Ok(items)
}

/// Splits at blank lines, except within comments.
fn blocks(text: &str) -> Vec<Vec<&str>> {
    let mut blocks = vec![Vec::new()];
    let mut comment = false;
    for line in text.lines() {
        if line.trim().is_empty() && !comment {
            blocks.push(Vec::new());
            continue;
        }
        comment = (comment || line.contains("/*")) && !line.contains("*/");
        if let Some(block) = blocks.last_mut() {
            block.push(line);
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

fn item(block: &[&str]) -> Result<Option<Item>> {
    let (guard, lines) = match block {
        [first, inner @ .., last] if first.starts_with("#if") && *last == "#endif" => {
            (Some((*first).to_owned()), inner)
        }
        _ => (None, block),
    };
    let (doc, lines) = take_comment(lines);
    let first = *lines
        .first()
        .ok_or("cbindgen left a comment without a declaration")?;
    if first.starts_with('#') {
        return Ok(None);
    }
    let words: Vec<&str> = first.split_whitespace().collect();
    let (name, kind) = match words.as_slice() {
        ["typedef", "enum", name, "{"] => (*name, Kind::Enum(members(&lines[1..], ','))),
        ["typedef", "struct", name, "{"] => {
            (*name, Kind::Record("struct", members(&lines[1..], ';')))
        }
        ["typedef", "union", name, "{"] => {
            (*name, Kind::Record("union", members(&lines[1..], ';')))
        }
        _ => {
            let text = code(lines);
            let alias = first.starts_with("typedef ");
            let head = if alias {
                text.trim_end_matches(';')
            } else {
                before_parenthesis(&text)
            };
            let name = last_word(head).to_owned();
            let kind = if alias {
                Kind::Alias(text)
            } else {
                Kind::Function(text)
            };
            return Ok(Some(Item {
                guard,
                doc,
                name,
                kind,
            }));
        }
    };
    Ok(Some(Item {
        guard,
        doc,
        name: name.to_owned(),
        kind,
    }))
}

fn before_parenthesis(text: &str) -> &str {
    text.split('(').next().unwrap_or(text)
}

/// A leading comment, and the lines after it.
fn take_comment<'a, 'b>(lines: &'b [&'a str]) -> (Vec<String>, &'b [&'a str]) {
    if lines.first().is_none_or(|line| line.trim() != "/*") {
        return (Vec::new(), lines);
    }
    let end = lines
        .iter()
        .position(|line| line.trim() == "*/")
        .unwrap_or(lines.len() - 1);
    let indent = lines[0].len() - lines[0].trim_start().len() + 1;
    let doc = lines[1..end]
        .iter()
        .map(|line| line.get(indent..).unwrap_or("").to_owned())
        .collect();
    (doc, &lines[end + 1..])
}

/// The members up to the closing brace; each ends with `end`.
fn members(lines: &[&str], end: char) -> Vec<Member> {
    let mut rest = lines;
    let mut members = Vec::new();
    while rest.first().is_some_and(|line| !line.starts_with('}')) {
        let (doc, after) = take_comment(rest);
        let last = after
            .iter()
            .position(|line| line.ends_with(end))
            .unwrap_or(after.len() - 1);
        let text = code(&after[..=last]).trim_end_matches(end).to_owned();
        members.push(Member { doc, text });
        rest = &after[last + 1..];
    }
    members
}

/// Joins the lines of one declaration and drops `struct`, `union` and `enum` before names: the
/// header declares a typedef for each of them first.
fn code(lines: &[&str]) -> String {
    let words = lines.iter().flat_map(|line| line.split_whitespace());
    let mut text = words.collect::<Vec<_>>().join(" ");
    for keyword in ["struct ", "union ", "enum "] {
        text = text.replace(keyword, "");
    }
    text
}

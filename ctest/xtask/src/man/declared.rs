//! What the C headers declare, with the comments there: functions with their parameters, types with their members,
//! constants.

/// A declaration of a header. What the comment says is Markdown.
pub(crate) struct Declaration {
    pub(crate) name: String,
    pub(crate) header: &'static str,
    pub(crate) kind: Kind,
    /// As it stands there, without comments.
    pub(crate) text: String,
    /// The first paragraph of its comment, without the reference to the specification.
    pub(crate) about: String,
    /// Parameters, members or values.
    pub(crate) items: Vec<Item>,
    /// The other paragraphs.
    pub(crate) more: String,
    /// Results that the comment explains.
    pub(crate) results: Vec<Item>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Function,
    /// A structure or union.
    Record,
    Enumeration,
    /// Another name of a type.
    Alias,
    Constant,
}

/// A parameter, member, value or result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub(crate) name: String,
    /// Its type, or its value.
    pub(crate) more: String,
    pub(crate) about: String,
}

/// All declarations of `vipl.h` and `vipl_ext.h`, in their order. Of two for two dialects the first one counts.
pub(crate) fn declarations(headers: &[&str; 2]) -> Vec<Declaration> {
    let names = ["vipl.h", "vipl_ext.h"];
    let mut found: Vec<Declaration> = Vec::new();
    for (text, header) in headers.iter().zip(names) {
        let mut reader = Reader {
            lines: text.lines(),
            header,
            comment: String::new(),
        };
        while let Some(line) = reader.lines.next() {
            if let Some(one) = reader.line(line)
                && !found.iter().any(|known| known.name == one.name)
            {
                found.push(one);
            }
        }
    }
    found
}

struct Reader<'a> {
    lines: std::str::Lines<'a>,
    header: &'static str,
    /// The last comment; a line without text ends what it is about.
    comment: String,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str) -> Option<Declaration> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => self.comment.clear(),
            ["/*", ..] => self.comment = self.comment(line),
            ["typedef", keyword, name, "{"] => return Some(self.block(line, keyword, name)),
            ["typedef", .., last] => {
                let name = last.trim_matches(['*', ';']);
                return Some(self.declared(name, Kind::Alias, line.to_owned()));
            }
            // Without a comment it is no constant of the library, but a guard or another name.
            ["#define", name, ..] if !self.comment.is_empty() => {
                let mut one = self.declared(name, Kind::Constant, words[2..].join(" "));
                one.more = String::new();
                self.comment.clear();
                return Some(one);
            }
            [..] if line.starts_with("VIP_")
                || line.starts_with("void")
                || line.starts_with("const ") =>
            {
                return Some(self.function(line));
            }
            _ => {}
        }
        None
    }

    /// The text of a comment that begins in this line; lines of it stay lines.
    fn comment(&mut self, first: &'a str) -> String {
        let mut text: Vec<&str> = Vec::new();
        let mut line = first.trim().trim_start_matches("/*");
        loop {
            let (inner, is_last) = match line.strip_suffix("*/") {
                Some(inner) => (inner, true),
                None => (line, false),
            };
            let inner = inner.trim_end();
            text.push(inner.strip_prefix(' ').unwrap_or(inner));
            if is_last {
                return text.join("\n");
            }
            let Some(next) = self.lines.next() else {
                return text.join("\n");
            };
            let next = next.trim();
            line = if next == "*/" {
                next
            } else {
                next.trim_start_matches('*')
            };
        }
    }

    fn function(&mut self, first: &'a str) -> Declaration {
        let mut text = first.to_owned();
        while !text.ends_with(';') {
            let Some(line) = self.lines.next() else { break };
            text += &format!("\n{line}");
        }
        let before = text.split('(').next().unwrap_or_default();
        let name = before.split([' ', '*']).next_back().unwrap_or_default();
        let name = name.to_owned();
        self.declared(&name, Kind::Function, text)
    }

    /// A structure, a union or an enumeration.
    fn block(&mut self, first: &'a str, keyword: &str, name: &str) -> Declaration {
        let about = std::mem::take(&mut self.comment);
        let mut text = format!("{first}\n");
        let mut items = Vec::new();
        while let Some(line) = self.lines.next() {
            let inner = line.trim();
            if inner.starts_with("/*") {
                self.comment = self.comment(line);
                continue;
            }
            text += &format!("{line}\n");
            if line.starts_with('}') {
                break;
            }
            let (name, more) = if keyword == "enum" {
                let inner = inner.trim_end_matches(',');
                inner.split_once(" = ").unwrap_or((inner, ""))
            } else {
                let inner = inner.trim_end_matches(';');
                let at = inner.rfind([' ', '*']).map_or(0, |at| at + 1);
                (&inner[at..], inner[..at].trim_end())
            };
            let (name, more) = match name.split_once('[') {
                Some((name, size)) => (name, format!("{more}[{size}")),
                None => (name, more.to_owned()),
            };
            items.push(Item {
                name: name.to_owned(),
                more,
                about: joined(&std::mem::take(&mut self.comment)),
            });
        }
        self.comment = about;
        let kind = if keyword == "enum" {
            Kind::Enumeration
        } else {
            Kind::Record
        };
        let mut declaration = self.declared(name, kind, text.trim_end().to_owned());
        declaration.items = items;
        declaration
    }

    /// With the comment taken apart.
    fn declared(&self, name: &str, kind: Kind, text: String) -> Declaration {
        let mut paragraphs = self.comment.split("\n\n");
        let about = joined(paragraphs.next().unwrap_or_default());
        let (mut items, mut results, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for paragraph in paragraphs {
            if !paragraph.starts_with("- ") {
                more.push(paragraph);
                continue;
            }
            for item in format!("\n{paragraph}").split("\n- ").skip(1) {
                let item = joined(item);
                let (name, about) = item.split_once(": ").unwrap_or((&item, ""));
                let is_result = name.starts_with("VIP_");
                let list = if is_result { &mut results } else { &mut items };
                list.push(Item {
                    name: name.trim_matches('`').to_owned(),
                    more: String::new(),
                    about: about.to_owned(),
                });
            }
        }
        Declaration {
            name: name.to_owned(),
            header: self.header,
            kind,
            text,
            about: without_reference(&about),
            items,
            more: more.join("\n\n"),
            results,
        }
    }
}

/// In one line.
fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Without "(spec 3.20)".
fn without_reference(about: &str) -> String {
    match about.rfind(" (") {
        Some(at) if about[at..].contains("spec ") => {
            format!("{}.", &about[..at])
        }
        _ => about.to_owned(),
    }
}

impl Declaration {
    /// What it is, for the section NAME: its first sentence, without a full stop.
    pub(super) fn summary(&self) -> String {
        let first = self.about.split(". ").next().unwrap_or_default();
        let first = first.split(": ").next().unwrap_or_default();
        let mut letters = first.trim_end_matches('.').chars();
        let head = letters.next().map(|letter| letter.to_ascii_lowercase());
        head.into_iter()
            .chain(letters)
            .filter(|c| *c != '`')
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "\
#ifndef VIPL_H
#define VIPL_H

/* Not a limit,
 * a maximum. */
#define VIP_MOST 0x40u

/* A number. */
typedef unsigned long VIP_ULONG;

/* One thing. And more. */
typedef struct VIP_X {
  /* Its name, which
   * is long. */
  VIP_CHAR Name[64];
  /* Where. */
  const VIP_UINT8 *Where;
} VIP_X;

/* A code. */
typedef enum VIP_CODE {
  /* Well. */
  VIP_GOOD = 0,
  VIP_BAD = 1
} VIP_CODE;

/* Posts it, at once (spec 3.20).
 *
 * - `Vi`: the VI,
 *   which is open.
 * - `n`: a number.
 *
 * It is fast.
 *
 * - VIP_BAD: it is not. */
VIP_RETURN VipPost(VIP_VI_HANDLE Vi,
                   int n);
";

    #[test]
    fn declarations_are_found_with_their_comments() {
        let found = declarations(&[HEADER, ""]);
        let names: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(
            names,
            ["VIP_MOST", "VIP_ULONG", "VIP_X", "VIP_CODE", "VipPost"]
        );
        let kinds: Vec<Kind> = found.iter().map(|one| one.kind).collect();
        use Kind::{Alias, Constant, Enumeration, Function, Record};
        assert_eq!(kinds, [Constant, Alias, Record, Enumeration, Function]);
        assert_eq!(
            (found[0].text.as_str(), found[0].about.as_str()),
            ("0x40u", "Not a limit, a maximum.")
        );
        let item = |name: &str, more: &str, about: &str| Item {
            name: name.to_owned(),
            more: more.to_owned(),
            about: about.to_owned(),
        };
        assert_eq!(
            found[2].items,
            [
                item("Name", "VIP_CHAR[64]", "Its name, which is long."),
                item("Where", "const VIP_UINT8 *", "Where.")
            ]
        );
        assert!(!found[2].text.contains("/*"), "{}", found[2].text);
        assert_eq!(found[2].summary(), "one thing");
        assert_eq!(
            found[3].items,
            [item("VIP_GOOD", "0", "Well."), item("VIP_BAD", "1", "")]
        );
        let post = &found[4];
        assert_eq!(post.about, "Posts it, at once.");
        assert_eq!(
            post.items,
            [
                item("Vi", "", "the VI, which is open."),
                item("n", "", "a number.")
            ]
        );
        assert_eq!(post.results, [item("VIP_BAD", "", "it is not.")]);
        assert_eq!(
            (post.more.as_str(), post.summary().as_str()),
            ("It is fast.", "posts it, at once")
        );
        assert!(post.text.ends_with("int n);"));
    }
}

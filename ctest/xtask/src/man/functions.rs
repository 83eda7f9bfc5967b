//! Section 3: a page for each function, from its declaration and its part of the specification.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::Page;
use super::text::Text;
use crate::Result;

/// A function as a header declares it.
pub(crate) struct Function {
    name: String,
    header: &'static str,
    /// The declaration, as it stands there.
    prototype: String,
    /// The comment before it, in one line.
    about: String,
    /// Its part of the specification (`3.20`).
    part: Option<String>,
}

/// The functions of `vipl.h` and `vipl_ext.h`, in their order.
pub(crate) fn declared(headers: &[&str; 2]) -> Vec<Function> {
    let names = ["vipl.h", "vipl_ext.h"];
    let mut functions = Vec::new();
    for (text, header) in headers.iter().zip(names) {
        let mut rest = *text;
        while let Some((_, after)) = rest.split_once("/* ") {
            let Some((comment, after)) = after.split_once("*/\n") else {
                break;
            };
            rest = after;
            let declaration = after.split_once(';').map_or("", |(text, _)| text);
            if let Some(name) = name_of(declaration) {
                functions.push(Function::new(name, header, declaration, comment));
            }
        }
    }
    functions
}

/// The name of a function, if this declares one of the library's.
fn name_of(declaration: &str) -> Option<&str> {
    let before = declaration.split('(').next()?;
    let name = before.split([' ', '*']).next_back()?;
    let is_name = name.starts_with("Vip") || name.starts_with("vipl_");
    let alone = !before.contains(['{', '#', '\n']) && declaration.contains('(');
    (is_name && alone && !before.starts_with("typedef")).then_some(name)
}

impl Function {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn new(name: &str, header: &'static str, declaration: &str, comment: &str) -> Function {
        let words: Vec<&str> = comment.split_whitespace().filter(|w| *w != "*").collect();
        let mut about = words.join(" ");
        let mut part = None;
        if let Some(at) = about.rfind(" (")
            && let Some(number) = about[at..].split("spec ").nth(1)
        {
            part = Some(number.trim_end_matches([')', '.']).to_owned());
            about.truncate(at);
        }
        Function {
            name: name.to_owned(),
            header,
            prototype: format!("{declaration};"),
            about,
            part,
        }
    }

    /// What it does, for the section NAME.
    fn summary(&self) -> String {
        let first = self.about.split(". ").next().unwrap_or_default();
        let mut letters = first.trim_end_matches('.').chars();
        let head = letters.next().map(|letter| letter.to_ascii_lowercase());
        head.into_iter()
            .chain(letters)
            .filter(|c| *c != '`')
            .collect()
    }
}

/// The list of functions, as Markdown.
pub(super) fn list(functions: &[Function]) -> String {
    functions.iter().fold(String::new(), |mut list, function| {
        let (name, summary) = (&function.name, function.summary());
        let _ = writeln!(list, "- **{name}**(3): {summary}");
        list
    })
}

/// The rules for all functions, as Markdown.
pub(super) fn rules(specification: &str) -> Result<String> {
    let items =
        part(specification, "3.0").ok_or("the specification has no rules for all functions")?;
    // Each begins with its number, R1.
    let items = items
        .iter()
        .map(|item| item.split_once(' ').map_or("", |(_, rule)| rule));
    Ok(items.map(|rule| format!("- {rule}\n")).collect())
}

/// All pages.
pub(super) fn pages(
    functions: &[Function],
    specification: &str,
    version: &str,
) -> Result<Vec<Page>> {
    let mut pages = Vec::new();
    let mut parts: BTreeMap<&str, Vec<&Function>> = BTreeMap::new();
    for function in functions {
        let key = function.part.as_ref().unwrap_or(&function.name);
        parts.entry(key).or_default().push(function);
    }
    for group in parts.values() {
        let number = group[0].part.as_deref();
        let items = match number {
            Some(number) => part(specification, number)
                .ok_or_else(|| format!("the specification has no {number}"))?,
            None => Vec::new(),
        };
        pages.push(page(group, &items, version));
        for other in &group[1..] {
            pages.push(Page {
                name: other.name.clone(),
                section: 3,
                text: format!(".so man3/{}.3\n", group[0].name),
            });
        }
    }
    Ok(pages)
}

fn page(group: &[&Function], items: &[String], version: &str) -> Page {
    let names: Vec<&str> = group
        .iter()
        .map(|function| function.name.as_str())
        .collect();
    let mut summaries: Vec<String> = group.iter().map(|function| function.summary()).collect();
    summaries.dedup();
    let mut text = Text::new(&names.join(", "), 3, version, &summaries.join("; "));
    text.section("Library");
    text.markdown("Virtual Interface Provider Library (`libvipl`, `-lvipl`; `pkg-config --cflags --libs vipl`)");
    text.section("Synopsis");
    let prototypes: Vec<&str> = group.iter().map(|f| f.prototype.as_str()).collect();
    text.verbatim(&format!(
        "#include <{}>\n\n{}",
        group[0].header,
        prototypes.join("\n\n")
    ));
    let said = Said::new(items);
    text.section("Description");
    if said.does.is_empty() {
        let about = group
            .iter()
            .map(|function| function.about.trim_end_matches('.'));
        let about: Vec<String> = about.map(|about| format!("{about}.")).collect();
        text.markdown(&about.join("\n\n"));
    }
    text.markdown(&said.does);
    text.markdown(&said.other);
    if !said.returns.is_empty() {
        text.section("Return value");
        text.markdown(&said.returns);
    } else if group[0].part.is_none() {
        let code = group[0].prototype.starts_with("VIP_RETURN");
        text.section("Return value");
        text.markdown(if code {
            "VIP_SUCCESS, or an error as described above."
        } else {
            "As described above; there is no error."
        });
    }
    if !said.notes.is_empty() {
        text.section("Notes");
        text.markdown(&said.notes);
    }
    if let Some(number) = &group[0].part {
        text.section("Standards");
        text.markdown(&format!(
            "VIPL 1.0. This page is part {number} of the specification of this library; numbers like 7.4 are its other parts."
        ));
    }
    text.see_also(&[("vipl".to_owned(), 7), ("vipl.conf".to_owned(), 5)]);
    text.page()
}

/// What the specification says of a function, by its place on the page; all Markdown.
#[derive(Default)]
struct Said {
    does: String,
    other: String,
    returns: String,
    notes: String,
}

impl Said {
    fn new(items: &[String]) -> Said {
        let mut said = Said::default();
        for item in items {
            said.add(item);
        }
        said
    }

    fn add(&mut self, item: &str) {
        let (item, inner) = item.split_once('\n').unwrap_or((item, ""));
        let (label, rest) = item.split_once(':').unwrap_or(("", item));
        let rest = rest.trim();
        match label {
            "Does" | "Precondition" => {
                // "Does: … Returns VIP_SUCCESS; …" in one item.
                let (does, returns) = rest.split_once(" Returns VIP_").unwrap_or((rest, ""));
                let before = if label == "Does" {
                    ""
                } else {
                    "Precondition: "
                };
                let _ = writeln!(self.does, "{before}{}\n", capital(does));
                if !returns.is_empty() {
                    self.returns += &codes(&format!("VIP_{returns}"));
                }
            }
            "Returns" if inner.is_empty() => self.returns += &codes(rest),
            "Returns" => {
                let _ = writeln!(self.returns, "{rest}\n\n{}", unindented(inner));
            }
            "Edge" => {
                let _ = writeln!(self.notes, "- {}", capital(rest));
            }
            _ => {
                let inner = if inner.is_empty() {
                    String::new()
                } else {
                    format!("\n{inner}")
                };
                let _ = writeln!(self.other, "- {item}{inner}");
            }
        }
    }
}

fn unindented(lines: &str) -> String {
    lines
        .lines()
        .map(|line| format!("{}\n", line.trim_start()))
        .collect()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let head = letters.next().map(|letter| letter.to_ascii_uppercase());
    head.into_iter().chain(letters).collect()
}

/// "A; B (when); C." as a list.
fn codes(text: &str) -> String {
    let mut list = String::from("- ");
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if letter == ';' && depth == 0 && text[at + 1..].starts_with(" VIP_") {
            list.push_str("\n-");
        } else {
            list.push(letter);
        }
    }
    list + "\n"
}

/// The items of a part of the specification, without marks of where they come from. An item is one line, and
/// those within it follow, one line each.
fn part(specification: &str, number: &str) -> Option<Vec<String>> {
    let head = format!("\n### {number} ");
    let (_, text) = specification.split_once(&head)?;
    let end = text.find("\n##").unwrap_or(text.len());
    let mut items: Vec<String> = Vec::new();
    for line in text[..end].lines().skip(1) {
        let trimmed = line.trim_start();
        if let Some(item) = line.strip_prefix("- ") {
            items.push(item.to_owned());
        } else if let (Some(_), Some(last)) = (trimmed.strip_prefix("- "), items.last_mut()) {
            let _ = write!(last, "\n{line}");
        } else if let (false, Some(last)) = (
            trimmed.is_empty() || line.starts_with('|'),
            items.last_mut(),
        ) {
            let _ = write!(last, " {trimmed}");
        }
    }
    Some(items.iter().map(|item| without_marks(item)).collect())
}

/// Without `[hdr]`, `[app: …]` and the like.
fn without_marks(text: &str) -> String {
    const MARKS: [&str; 7] = ["hdr", "chdr", "mem", "choice", "calc", "?", "strict"];
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        out += before;
        let Some((mark, after)) = after.split_once(']') else {
            rest = after;
            continue;
        };
        if MARKS.contains(&mark)
            || mark.starts_with("hdr: ")
            || mark.starts_with("app: ")
            || mark.starts_with("page: ")
        {
            out.truncate(out.trim_end_matches(' ').len());
        } else {
            let _ = write!(out, "[{mark}]");
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_go_and_other_brackets_stay() {
        let text = "Does: one [hdr]. Array[2] too [app: A, B] [choice]";
        assert_eq!(without_marks(text), "Does: one. Array[2] too");
    }

    #[test]
    fn codes_are_a_list() {
        let text = "VIP_SUCCESS; VIP_TIMEOUT (late; very); VIP_ERROR_RESOURCE.";
        let list = "- VIP_SUCCESS\n- VIP_TIMEOUT (late; very)\n- VIP_ERROR_RESOURCE.\n";
        assert_eq!(codes(text), list);
    }

    #[test]
    fn a_declaration_is_a_function() {
        let header = "/* Any type. */\nstruct VIP_X {\n};\n/* Posts it,\n * at once (spec 3.20). */\n\
                      VIP_RETURN VipPost(VIP_VI_HANDLE Vi,\n                   int n);\n";
        let functions = declared(&[header, ""]);
        assert_eq!(functions.len(), 1);
        let function = &functions[0];
        assert_eq!(
            (function.name.as_str(), function.part.as_deref()),
            ("VipPost", Some("3.20"))
        );
        assert_eq!(function.summary(), "posts it, at once");
        assert!(function.prototype.ends_with("int n);"));
    }
}

//! Sections 3 and 7: pages of functions, types and constants, from their declarations and from `docs/man`.

use super::declared::{Declaration, Item, Kind};
use super::source::Source;
use super::text::Text;
use super::{Edition, Page};
use crate::Result;

/// The page of a source that has declarations, and for each further name one that refers to it. Nothing, if it has none.
pub(super) fn pages(
    source: Source,
    declared: &[Declaration],
    edition: &Edition,
) -> Result<Vec<Page>> {
    let of_source = |one: &&Declaration| {
        let begins = |prefix: &String| one.name.starts_with(prefix.as_str());
        source.names.contains(&one.name)
            || (one.kind == Kind::Constant && source.constants.iter().any(begins))
    };
    let declarations: Vec<&Declaration> = declared.iter().filter(of_source).collect();
    let names = source.names.clone();
    let of_name = |name: &&String| !declarations.iter().any(|one| one.name == **name);
    let Some(first) = declarations.first() else {
        return Ok(Vec::new());
    };
    // A page of constants has their common name.
    if let Some(name) = names.iter().skip(1).find(of_name) {
        return Err(format!("docs/man: no header declares {name}").into());
    }
    let section = source.section;
    let page = if first.kind == Kind::Function {
        functions(source, &declarations, edition)?
    } else {
        types(source, &declarations, edition)?
    };
    let others = names[1..].iter().map(|name| Page {
        name: name.clone(),
        section,
        text: format!(".so man{section}/{}.{section}\n", names[0]),
    });
    Ok([page].into_iter().chain(others).collect())
}

fn functions(mut source: Source, group: &[&Declaration], edition: &Edition) -> Result<Page> {
    let mut summaries: Vec<String> = group.iter().map(|one| one.summary()).collect();
    summaries.dedup();
    let names = source.names.join(", ");
    let mut text = Text::new(&names, source.section, edition, &summaries.join("; "));
    text.section("Library");
    text.markdown("VIPL (`libvipl`, `-lvipl`; `pkg-config --cflags --libs vipl`)");
    synopsis(&mut text, group);
    let parameters = parameters(group)?;
    if !parameters.is_empty() {
        text.section("Parameters");
        terms(&mut text, &parameters);
    }
    text.section("Description");
    let by_name = group.len() > 1;
    for one in group.iter().filter(|one| !one.more.is_empty()) {
        if by_name {
            text.part(&one.name);
        }
        text.markdown(&format!("{}\n\n{}", one.about, one.more));
    }
    match source.take("Description") {
        Some(description) => text.markdown(&description),
        None if group.iter().all(|one| one.more.is_empty()) => {
            return Err(format!("docs/man/{}: no Description", source.names[0]).into());
        }
        None => {}
    }
    text.section("Return value");
    for one in group.iter().filter(|one| !one.results.is_empty()) {
        if by_name {
            text.part(&one.name);
        }
        text.term("VIP_SUCCESS", "", "Done.");
        for result in &one.results {
            text.term(&result.name, "", &capital(&result.about));
        }
    }
    match source.take("Return value") {
        Some(results) => text.markdown(&results),
        None if group.iter().any(|one| one.results.is_empty()) => {
            return Err(format!("docs/man/{}: no Return value", source.names[0]).into());
        }
        None => {}
    }
    let references = source.take("See also").unwrap_or_default();
    for (title, body) in &source.sections {
        text.section(title);
        text.markdown(body);
    }
    text.section("Standards");
    let is_extension = group.iter().all(|one| one.header == "vipl_ext.h");
    text.markdown(match source.names[0].as_str() {
        _ if is_extension => "An extension of this library.",
        "VipSetUserData" => "An extension of cLAN's VIPL.",
        _ => "VIPL 1.0.",
    });
    see_also(&mut text, &references);
    Ok(text.page())
}

fn types(mut source: Source, group: &[&Declaration], edition: &Edition) -> Result<Page> {
    let name = source.names[0].clone();
    let about = source
        .about
        .clone()
        .ok_or_else(|| format!("docs/man/{name}: no line says what it is"))?;
    let names = source.names.join(", ");
    let mut text = Text::new(&names, source.section, edition, &about);
    let of = |kinds: &[Kind]| -> Vec<&Declaration> {
        let is_one = |one: &&&Declaration| kinds.contains(&one.kind);
        group.iter().filter(is_one).copied().collect()
    };
    let declared = of(&[Kind::Record, Kind::Enumeration]);
    let (aliases, constants) = (of(&[Kind::Alias]), of(&[Kind::Constant]));
    // Many aliases are listed once.
    let is_short = declared.is_empty() && aliases.len() < 4;
    synopsis(&mut text, if is_short { &aliases } else { &declared });
    text.section("Description");
    if let [one] = declared[..] {
        text.markdown(&one.about);
    }
    text.markdown(&source.take("Description").unwrap_or_default());
    if !declared.is_empty() {
        let is_values = declared[0].kind == Kind::Enumeration;
        text.section(if is_values { "Values" } else { "Fields" });
    }
    for one in &declared {
        if declared.len() > 1 {
            text.part(&one.name);
            text.markdown(&one.about);
        }
        terms(&mut text, &one.items);
    }
    if !aliases.is_empty() {
        text.section("Types");
        for one in aliases {
            let declaration = one.text.trim_start_matches("typedef ");
            let end = declaration.rfind(&one.name).unwrap_or(declaration.len());
            text.term(
                &one.name,
                &format!(" ({})", declaration[..end].trim_end()),
                &one.about,
            );
        }
    }
    if !constants.is_empty() {
        text.section("Constants");
        for one in constants {
            let value = one.text.trim_matches(['(', ')']);
            text.term(&one.name, &format!(" ({value})"), &one.about);
        }
    }
    let references = source.take("See also").unwrap_or_default();
    for (title, body) in &source.sections {
        text.section(title);
        text.markdown(body);
    }
    see_also(&mut text, &references);
    Ok(text.page())
}

/// Columns for a line of the synopsis.
const WIDTH: usize = 73;

fn synopsis(text: &mut Text, group: &[&Declaration]) {
    text.section("Synopsis");
    let declared: Vec<String> = group.iter().map(|one| narrow(&one.text)).collect();
    let header = group.first().map_or("vipl.h", |one| one.header);
    text.verbatim(&format!("#include <{header}>\n\n{}", declared.join("\n\n")));
}

/// A prototype that fits: its parameters below each other, if need be in lines of their own.
fn narrow(prototype: &str) -> String {
    let fits = |text: &str| text.lines().all(|line| line.len() <= WIDTH);
    if fits(prototype) {
        return prototype.to_owned();
    }
    let aligned = broken(prototype, false);
    if fits(&aligned) {
        aligned
    } else {
        broken(prototype, true)
    }
}

/// With a new line after each comma, or also after the first parenthesis.
fn broken(prototype: &str, at_parenthesis: bool) -> String {
    let words: Vec<&str> = prototype.split_whitespace().collect();
    let (mut out, mut column, mut indents) = (String::new(), 0, Vec::new());
    let mut is_new = false;
    for letter in words.join(" ").chars() {
        if std::mem::take(&mut is_new) {
            let indent = indents.last().copied().unwrap_or(0);
            out += &format!("\n{}", " ".repeat(indent));
            column = indent;
            if letter == ' ' {
                continue;
            }
        }
        out.push(letter);
        column += 1;
        match letter {
            '(' if at_parenthesis && indents.is_empty() => {
                indents.push(4);
                is_new = true;
            }
            '(' => indents.push(column),
            ')' => drop(indents.pop()),
            ',' => is_new = true,
            _ => {}
        }
    }
    out
}

/// The parameters of all functions of a page; those of one name have one meaning.
fn parameters(group: &[&Declaration]) -> Result<Vec<Item>> {
    let mut all: Vec<Item> = Vec::new();
    for one in group {
        let list = one.text.split_once('(').map_or("", |(_, list)| list);
        for item in &one.items {
            if !list.contains(&item.name) {
                return Err(format!("{} has no parameter {}", one.name, item.name).into());
            }
            match all.iter().find(|known| known.name == item.name) {
                None => all.push(item.clone()),
                Some(known) if known.about == item.about => {}
                Some(_) => {
                    let problem = format!("{}: two meanings of {}", one.name, item.name);
                    return Err(problem.into());
                }
            }
        }
    }
    Ok(all)
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let head = letters.next().map(|letter| letter.to_ascii_uppercase());
    head.into_iter().chain(letters).collect()
}

fn terms(text: &mut Text, items: &[Item]) {
    for item in items {
        let more = if item.more.is_empty() {
            String::new()
        } else {
            format!(" ({})", item.more)
        };
        text.term(&item.name, &more, &item.about);
    }
}

/// The references of a page, and the one to the index.
pub(super) fn see_also(text: &mut Text, references: &str) {
    text.section("See also");
    let comma = if references.is_empty() { "" } else { ", " };
    text.markdown(&format!("{references}{comma}**vipl**(7)"));
}

/// Functions or types of all pages, as a list of Markdown.
pub(super) fn index(sources: &[Source], declared: &[Declaration], of_functions: bool) -> String {
    let mut list = String::new();
    let mut add = |name: &str, section: u8, about: &str| {
        list += &format!("- **{name}**({section}): {about}\n");
    };
    if of_functions {
        for one in declared.iter().filter(|one| one.kind == Kind::Function) {
            add(&one.name, 3, &one.summary());
        }
    } else {
        let is_type = |source: &&Source| {
            let declares = |one: &Declaration| source.names.contains(&one.name);
            source.section == 7 && (declared.iter().any(declares) || !source.constants.is_empty())
        };
        for source in sources.iter().filter(is_type) {
            let about = source.about.as_deref().unwrap_or_default();
            add(&source.names[0], source.section, about);
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_prototypes_are_broken() {
        let short = "int f(int a, int b);";
        assert_eq!(narrow(short), short);
        assert_eq!(broken(short, false), "int f(int a,\n      int b);");
        let handler = "int f(int a,\n  void (*H)(int b, int c));";
        assert_eq!(
            broken(handler, true),
            "int f(\n    int a,\n    void (*H)(int b,\n              int c));"
        );
    }
}

//! `cargo xtask man --check`: pages are well formed, fit a terminal, refer to pages that exist, and their examples compile.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Page;
use crate::Result;
use crate::compile::compile;
use crate::workspace::have;

/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Pages of other packages begin otherwise.
const OURS: [&str; 3] = ["Vip", "vip", "VIP_"];

/// Checks the pages, which are in a folder.
pub(super) fn all(pages: &[Page], folder: &Path) -> Result {
    let mut bad = dead_references(pages);
    if have("groff") {
        for page in pages.iter().filter(|page| !page.is_reference()) {
            let text = format(page, folder, &mut bad)?;
            bad.extend(too_wide(page, &text));
            match example(page, &text) {
                Some(example) => bad.extend(compiled(page, &example, pages)),
                None if page.section == 3 => bad.push(format!("{}: no example", page.name)),
                None => {}
            }
        }
    } else {
        println!("SKIP format and examples of the pages: groff is not installed");
    }
    if have("mandoc") {
        for page in pages {
            let mut mandoc = Command::new("mandoc");
            mandoc.args(["-Tlint", "-Wwarning"]).arg(page.path());
            let said = mandoc.current_dir(folder).output()?;
            bad.extend(lines(&said.stdout));
        }
    }
    if bad.is_empty() {
        println!("{} pages without a warning", pages.len());
        return Ok(());
    }
    Err(bad.join("\n").into())
}

/// References to pages that do not exist.
fn dead_references(pages: &[Page]) -> Vec<String> {
    let known: BTreeSet<(&str, u8)> = pages
        .iter()
        .map(|page| (page.name.as_str(), page.section))
        .collect();
    let mut bad = Vec::new();
    for page in pages {
        for rest in page.text.split("\\fB").skip(1) {
            let Some((name, after)) = rest.split_once("\\fR(") else {
                continue;
            };
            let name = name.replace("\\-", "-");
            let section = after.split_once(')').map_or("", |(section, _)| section);
            let Ok(section) = section.parse::<u8>() else {
                continue;
            };
            let is_ours = OURS.iter().any(|begin| name.starts_with(begin));
            if is_ours && !known.contains(&(name.as_str(), section)) {
                bad.push(format!(
                    "{}({}): there is no {name}({section})",
                    page.name, page.section
                ));
            }
        }
    }
    bad
}

/// The page as a terminal shows it; complaints of groff are added.
fn format(page: &Page, folder: &Path, bad: &mut Vec<String>) -> Result<String> {
    let mut groff = Command::new("groff");
    groff.args(["-man", "-Kutf8", "-Tutf8", "-ww", "-rLL=78n", "-P-cbou"]);
    let said = groff
        .current_dir(folder)
        .arg(page.path())
        .stdin(Stdio::null())
        .output()?;
    bad.extend(lines(&said.stderr));
    if !said.status.success() {
        bad.push(format!("groff: {}", page.path().display()));
    }
    Ok(String::from_utf8(said.stdout)?)
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text)
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Lines that do not fit. Guides are written for the screen of an editor, with wide listings.
fn too_wide(page: &Page, text: &str) -> Vec<String> {
    let is_guide = matches!(page.name.as_str(), "vipl_plugin" | "vipl_layers");
    let wide = text
        .lines()
        .filter(|line| line.chars().count() > COLUMNS && !is_guide);
    wide.map(|line| {
        format!(
            "{}: wider than {COLUMNS} columns: {line}",
            page.path().display()
        )
    })
    .collect()
}

/// The example of a page in C, as a reader copies it from the terminal.
fn example(page: &Page, text: &str) -> Option<String> {
    let (_, section) = text.split_once("\nEXAMPLES\n")?;
    let lines = section
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with(' '))
        .map(|line| line.strip_prefix("       ").unwrap_or(line));
    let text: Vec<&str> = lines.collect();
    let text = text.join("\n");
    (page.section == 3 || text.contains("#include <vipl")).then_some(text)
}

/// What the compiler says of an example, and functions of the page that it does not call.
fn compiled(page: &Page, example: &str, pages: &[Page]) -> Vec<String> {
    let mut bad = Vec::new();
    let mut compiler = Command::new("cc");
    compiler.args(["-xc", "-std=c99", "-fsyntax-only", "-"]);
    if let Err(error) = compile(&mut compiler, example) {
        bad.push(format!("{}: {error}", page.path().display()));
    }
    let reference = format!(".so {}\n", page.path().display());
    let shown = pages.iter().filter(|other| other.text == reference);
    for one in shown.chain([page]).filter(|one| one.section == 3) {
        if !example.contains(&format!("{}(", one.name)) {
            bad.push(format!(
                "{}: no example of {}",
                page.path().display(),
                one.name
            ));
        }
    }
    bad
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str, text: &str) -> Page {
        Page {
            name: name.to_owned(),
            section: 3,
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_reference_to_no_page_is_found() {
        let text = "\\fBVipA\\fR(3), \\fBvip\\-b\\fR(1), \\fBepoll\\fR(7)";
        let said = dead_references(&[page("VipA", text)]);
        assert_eq!(said, ["VipA(3): there is no vip-b(1)"]);
    }

    #[test]
    fn the_example_is_what_the_terminal_shows() {
        let one = page("VipA", "");
        let shown = "NAME\n       VipA\n\nEXAMPLES\n       int a;\n\n           a(b);\n\nSEE ALSO\n       x\n";
        let text = example(&one, shown).unwrap();
        assert_eq!(text.trim_end(), "int a;\n\n    a(b);");
        assert!(example(&one, "NAME\n").is_none());
        assert_eq!(too_wide(&one, &"x".repeat(81)).len(), 1);
        assert!(too_wide(&one, &"x".repeat(80)).is_empty());
    }

    #[test]
    fn an_example_compiles_and_shows_all_functions() {
        if !have("cc") {
            println!("SKIP cc is not installed");
            return;
        }
        let pages = [page("VipA", "x"), page("VipB", ".so man3/VipA.3\n")];
        let said = compiled(&pages[0], "extern int VipA(void);\n", &pages);
        assert_eq!(said, ["man3/VipA.3: no example of VipB"]);
        let said = compiled(&pages[1], "VipB(; missing\n", &pages);
        assert_eq!(said.len(), 1);
    }
}

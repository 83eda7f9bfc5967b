//! `cargo xtask man`: the manual pages.
//!
//! | page | is made from |
//! | --- | --- |
//! | functions, section 3 | their declarations in the headers with the comments there, which are those of the Rust sources, and `docs/man/NAME.3.md` |
//! | types and constants, section 7 | the same, and `docs/man/NAME.7.md` |
//! | `vipl(7)` | `docs/man/vipl.7.md`, with the lists of functions and types put in |
//! | `vipl_plugin(7)`, `vipl_layers(7)` | `plugins/PLUGINS.md`, `docs/LAYERS.md` |
//! | `vipl.conf(5)` | the sample file, `pkgconfig/vipl.conf` |
//! | the tools, section 1, and `vipkad(8)` | their command lines, by `--generate man`, and `docs/man/NAME.1.md` |
//! | `vipl-mpirun(1)` | `docs/man/vipl-mpirun.1.md` |
//!
//! All functions and types of the headers have a page, or generating fails; so it does if a page does not explain a parameter.

mod check;
mod conf;
pub(crate) mod declared;
mod programs;
mod reference;
mod source;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::workspace::{Workspace, build, output, root};

use declared::{Declaration, Kind, declarations};
use source::Source;
use text::Text;

/// Where the texts of pages are.
const TEXTS: &str = "docs/man";
/// Names of the old header that no function uses.
const UNUSED: [&str; 3] = ["VIP_EVENT_HANDLE", "VIP_LONG", "VIP_SHORT"];

/// Arguments of `cargo xtask man`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write the pages to this folder [default: target/man]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The programs are up to date
    #[arg(long)]
    no_build: bool,
    /// Let groff and mandoc format each page, and a compiler the examples; fail if one warns
    #[arg(long)]
    check: bool,
}

/// A manual page.
pub(crate) struct Page {
    pub(crate) name: String,
    pub(crate) section: u8,
    pub(crate) text: String,
}

impl Page {
    /// Its file below `share/man`.
    pub(crate) fn path(&self) -> PathBuf {
        let Page { name, section, .. } = self;
        format!("man{section}/{name}.{section}").into()
    }

    /// It only refers to another one.
    fn is_reference(&self) -> bool {
        self.text.starts_with(".so ")
    }
}

/// What the title of each page says.
struct Edition {
    version: String,
    /// Of the release: `2026-11-23`.
    date: String,
}

impl Edition {
    fn new(version: &str) -> Result<Edition> {
        let changes = read("packaging/debian/changelog")?;
        let date = changes
            .lines()
            .find_map(|line| iso(line.strip_prefix(" -- ")?.rsplit_once(", ")?.1));
        Ok(Edition {
            version: version.to_owned(),
            date: date.ok_or("packaging/debian/changelog has no date")?,
        })
    }
}

/// `23 Nov 2026 12:00:00 +0000` as `2026-11-23`.
fn iso(date: &str) -> Option<String> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let mut words = date.split(' ');
    let (day, month, year) = (words.next()?, words.next()?, words.next()?);
    let month = MONTHS.find(month)? / 3 + 1;
    Some(format!("{year}-{month:02}-{day:0>2}"))
}

fn read(path: &str) -> Result<String> {
    Ok(fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?)
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let workspace = Workspace::load()?;
    if !options.no_build {
        build()?;
    }
    let out = options.out.clone();
    let out = out.unwrap_or_else(|| workspace.target.join("man"));
    let mut pages = pages(&workspace.version)?;
    pages.extend(programs(&workspace, &workspace.target.join("debug"))?);
    for page in &pages {
        let path = out.join(page.path());
        fs::create_dir_all(path.parent().ok_or("a path without a folder")?)?;
        fs::write(path, &page.text)?;
    }
    println!("{} pages in {}", pages.len(), out.display());
    if options.check {
        check::all(&pages, &out)
    } else {
        Ok(())
    }
}

/// The pages that need no program.
pub(crate) fn pages(version: &str) -> Result<Vec<Page>> {
    let edition = Edition::new(version)?;
    let declared = declarations(&[&read("headers/vipl.h")?, &read("headers/vipl_ext.h")?]);
    let sources = Source::all(&root().join(TEXTS))?;
    complete(&sources, &declared)?;
    let functions = reference::index(&sources, &declared, true);
    let types = reference::index(&sources, &declared, false);
    let mut pages = vec![conf::page(&read("pkgconfig/vipl.conf")?, &edition)?];
    for source in sources {
        let name = source.names[0].as_str();
        if name == "vipl" || name == "vipl-mpirun" {
            let put = |text: &str| {
                text.replace("@functions@", &functions)
                    .replace("@types@", &types)
            };
            pages.push(plain(source, &edition, put)?);
        } else if source.section == 3 || source.section == 7 {
            pages.extend(reference::pages(source, &declared, &edition)?);
        }
    }
    let mut plugin = Text::new("vipl_plugin", 7, &edition, "how to write a plug-in of VIPL");
    let guide = read("plugins/PLUGINS.md")?;
    let (_, sections) = guide
        .split_once("\n## ")
        .ok_or("PLUGINS.md has no sections")?;
    plugin.markdown(&format!("## {sections}"));
    reference::see_also(
        &mut plugin,
        "**vip_conform**(1), **vipl.conf**(5), **vipl_layers**(7)",
    );
    let mut layers = Text::new("vipl_layers", 7, &edition, "look at the calls of a program");
    let guide = read("docs/LAYERS.md")?;
    let (_, guide) = guide.split_once("\n\n").ok_or("LAYERS.md has no text")?;
    layers.markdown(&format!("## DESCRIPTION\n\n{guide}"));
    reference::see_also(&mut layers, "**vip_replay**(1), **vipl_plugin**(7)");
    pages.extend([plugin.page(), layers.page()]);
    Ok(pages)
}

/// Every function, type and constant is on one page.
fn complete(sources: &[Source], declared: &[Declaration]) -> Result {
    for one in declared {
        let is_on = |source: &&Source| {
            let begins = |prefix: &String| one.name.starts_with(prefix.as_str());
            match one.kind {
                Kind::Constant => source.constants.iter().any(begins),
                Kind::Function => source.section == 3 && source.names.contains(&one.name),
                _ => source.section == 7 && source.names.contains(&one.name),
            }
        };
        let (pages, name) = (sources.iter().filter(is_on).count(), &one.name);
        if pages != 1 && !UNUSED.contains(&name.as_str()) {
            return Err(format!("{TEXTS}: {name} of {} is on {pages} pages", one.header).into());
        }
        let is_explained = |name: &str| {
            one.items
                .iter()
                .any(|item| item.name == name && !item.about.is_empty())
        };
        if one.about.is_empty() && pages == 1 {
            return Err(format!("{}: {name} has no comment", one.header).into());
        }
        let unexplained = match one.kind {
            Kind::Function => parameters(&one.text)
                .into_iter()
                .find(|name| !is_explained(name)),
            _ => one
                .items
                .iter()
                .map(|item| item.name.as_str())
                .find(|name| !is_explained(name)),
        };
        if let Some(what) = unexplained {
            return Err(format!("{}: {name}: nothing explains {what}", one.header).into());
        }
    }
    Ok(())
}

/// The names of a function's parameters; those of a handler's are its own.
fn parameters(prototype: &str) -> Vec<&str> {
    let list = prototype.split_once('(').map_or("", |(_, list)| list);
    let list = list.trim_end_matches(';').trim_end_matches(')');
    let (list, handler) = match list.split_once("void (*") {
        Some((list, handler)) => (list, handler.split(')').next()),
        None => (list, None),
    };
    let names = list.split(',').map(|one| {
        let one = one.trim();
        &one[one.rfind([' ', '*']).map_or(0, |at| at + 1)..]
    });
    names
        .filter(|name| !name.is_empty())
        .chain(handler)
        .collect()
}

/// A page without declarations.
fn plain(source: Source, edition: &Edition, put: impl Fn(&str) -> String) -> Result<Page> {
    let mut source = source;
    let about = source.about.clone().unwrap_or_default();
    let mut text = Text::new(&source.names[0], source.section, edition, &about);
    let references = source.take("See also").unwrap_or_default();
    for (title, body) in &source.sections {
        text.section(title);
        text.markdown(&put(body));
    }
    if source.names[0] == "vipl" {
        text.section("See also");
        text.markdown(&references);
    } else {
        reference::see_also(&mut text, &references);
    }
    Ok(text.page())
}

/// The pages of the programs, made by the programs in this folder.
pub(crate) fn programs(workspace: &Workspace, built: &Path) -> Result<Vec<Page>> {
    let edition = Edition::new(&workspace.version)?;
    let mut sources = Source::all(&root().join(TEXTS))?;
    let tools = workspace.tools().into_iter();
    tools
        .chain(["vipkad".to_owned()])
        .map(|name| {
            let is_its = |source: &Source| source.section != 3 && source.names[0] == name;
            let at = sources.iter().position(is_its);
            let at = at.ok_or_else(|| format!("{TEXTS} has no page of {name}"))?;
            programs::page(sources.remove(at), built, &edition)
        })
        .collect()
}

/// What a program prints of itself.
pub(crate) fn generate(built: &Path, program: &str, what: &str) -> Result<String> {
    let mut command = Command::new(built.join(program));
    output(command.args(["--generate", what]))
}

#[cfg(test)]
mod tests;

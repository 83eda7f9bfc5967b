//! `cargo xtask man`: the manual pages.
//!
//! | page | is made from |
//! | --- | --- |
//! | every function, section 3 | its declaration in the headers, and its part of `docs/SPECIFICATION.md` |
//! | `vipl.conf(5)` | the sample file, `pkgconfig/vipl.conf` |
//! | `vipl-mpirun(1)` | `docs/man/vipl-mpirun.1.md` |
//! | `vipl(7)` | `docs/man/vipl.7.md`, with the list of functions and the rules for all of them put in |
//! | `vipl_plugin(7)` | `plugins/PLUGINS.md` |
//! | `vipl_layers(7)` | `docs/LAYERS.md` |
//! | the tools, section 1, and `vipkad(8)` | their command lines, by `--generate man` |

mod conf;
pub(crate) mod functions;
mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;

use crate::Result;
use crate::workspace::{Workspace, build, have, output, root};

use text::Text;

/// Arguments of `cargo xtask man`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write the pages to this folder [default: target/man]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// The programs are up to date
    #[arg(long)]
    no_build: bool,
    /// Let groff format each page, and fail if it warns
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
        check(&pages, &out)
    } else {
        Ok(())
    }
}

/// The pages that need no program.
pub(crate) fn pages(version: &str) -> Result<Vec<Page>> {
    let read = |path: &str| {
        fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
    };
    let specification = read("docs/SPECIFICATION.md")?;
    let functions = functions::declared(&[&read("headers/vipl.h")?, &read("headers/vipl_ext.h")?]);
    let mut pages = functions::pages(&functions, &specification, version)?;
    pages.push(conf::page(&read("pkgconfig/vipl.conf")?, version)?);
    let mut vipl = Text::new(
        "vipl",
        7,
        version,
        "Virtual Interface Architecture, user-level networking",
    );
    let source = read("docs/man/vipl.7.md")?
        .replace("@functions@", &functions::list(&functions))
        .replace("@rules@", &functions::rules(&specification)?);
    vipl.markdown(&source);
    let mut wrapper = Text::new("vipl-mpirun", 1, version, "run a program of MPI over VIPL");
    wrapper.markdown(&read("docs/man/vipl-mpirun.1.md")?);
    let mut plugin = Text::new("vipl_plugin", 7, version, "how to write a plug-in of VIPL");
    let guide = read("plugins/PLUGINS.md")?;
    let (_, sections) = guide
        .split_once("\n## ")
        .ok_or("PLUGINS.md has no sections")?;
    plugin.markdown(&format!("## {sections}"));
    plugin.see_also(&[("vipl".to_owned(), 7), ("vipl.conf".to_owned(), 5)]);
    let mut layers = Text::new("vipl_layers", 7, version, "look at the calls of a program");
    let guide = read("docs/LAYERS.md")?;
    let (_, guide) = guide.split_once("\n\n").ok_or("LAYERS.md has no text")?;
    layers.markdown(&format!("## DESCRIPTION\n\n{guide}"));
    layers.see_also(&[("vipl".to_owned(), 7), ("vipl_plugin".to_owned(), 7)]);
    pages.extend([vipl.page(), wrapper.page(), plugin.page(), layers.page()]);
    Ok(pages)
}

/// The pages of the programs, made by the programs in this folder.
pub(crate) fn programs(workspace: &Workspace, built: &Path) -> Result<Vec<Page>> {
    let tools = workspace.tools().into_iter();
    let tools = tools.map(|name| (name, 1));
    tools
        .chain([("vipkad".to_owned(), 8)])
        .map(|(name, section)| {
            Ok(Page {
                text: generate(built, &name, "man")?,
                name,
                section,
            })
        })
        .collect()
}

/// What a program prints of itself.
pub(crate) fn generate(built: &Path, program: &str, what: &str) -> Result<String> {
    let mut command = Command::new(built.join(program));
    output(command.args(["--generate", what]))
}

/// Formats every page.
fn check(pages: &[Page], folder: &Path) -> Result {
    if !have("groff") {
        println!("SKIP format of the pages: groff is not installed");
        return Ok(());
    }
    let mut bad = Vec::new();
    for page in pages {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Kutf8", "-Tutf8", "-ww", "-z"]);
        groff.current_dir(folder).arg(page.path());
        let said = groff.stdout(Stdio::null()).output()?;
        let complaints = String::from_utf8_lossy(&said.stderr).into_owned();
        if !said.status.success() || !complaints.is_empty() {
            bad.push(complaints);
        }
    }
    if bad.is_empty() {
        println!("{} pages formatted without a warning", pages.len());
        return Ok(());
    }
    Err(bad.concat().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_page_that_says_what_it_returns() {
        let pages = pages("0.0.0").unwrap();
        let functions: Vec<&Page> = pages.iter().filter(|page| page.section == 3).collect();
        assert!(functions.len() >= 44, "{}", functions.len());
        for page in functions {
            let alias = page.text.starts_with(".so man3/");
            let is_function = page.text.contains(".SH \"RETURN VALUE\"");
            // The specification says it with each function of a group, in a table, or that it is as for another one.
            let elsewhere = ["VIP_SUCCESS", "As VipConnectPeerDone"]
                .iter()
                .any(|words| page.text.contains(words));
            let table = page.name.ends_with("UserData");
            assert!(alias || is_function || elsewhere || table, "{}", page.name);
            assert!(!page.text.contains("[choice]"), "{}", page.name);
        }
    }

    #[test]
    fn every_setting_of_the_sample_is_on_the_page() {
        let sample = fs::read_to_string(root().join("pkgconfig/vipl.conf")).unwrap();
        let pages = pages("0.0.0").unwrap();
        let page = pages.iter().find(|page| page.name == "vipl.conf").unwrap();
        let settings = sample
            .lines()
            .filter_map(|line| line.strip_prefix('#')?.split_once(" = "))
            .map(|(name, _)| name)
            .filter(|name| !name.contains(' '));
        for name in settings {
            assert!(page.text.contains(&text::escaped(name)), "{name}");
        }
    }
}

//! `cargo xtask abi`: what programs depend on beyond the source, pinned in `headers/abi/`.
//!
//! `symbols.txt` holds the exported names, which are those the headers declare; `layout.txt` the
//! sizes and offsets. `--check` also reads the built library and plug-ins.

use std::path::Path;
use std::process::Command;

use clap::Args;

use crate::headers;
use crate::man::declared::{Kind, declarations};
use crate::workspace::{Workspace, output};
use crate::{Result, diff, layout};

/// The command that writes the files.
const FIX: &str = "cargo xtask abi";
/// The only name a plug-in exports.
const PLUGIN_SYMBOL: &str = "vipl_plugin_v1";

/// Arguments of `cargo xtask abi`.
#[derive(Args)]
pub(crate) struct Options {
    /// Compare the files with the headers and with the built library; write nothing
    #[arg(long)]
    check: bool,
    /// Read what the tests run, not a release build
    #[arg(long)]
    dev: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let headers = headers::generate()?;
    let [vipl, extension, _] = &headers;
    let declared = declarations(&[&vipl.text, &extension.text]);
    let functions = declared.iter().filter(|one| one.kind == Kind::Function);
    let mut names: Vec<&str> = functions.map(|one| one.name.as_str()).collect();
    names.sort_unstable();
    let names = names.join("\n") + "\n";
    diff::settle("headers/abi/symbols.txt", &names, options.check, FIX)?;
    if cfg!(target_arch = "x86_64") {
        diff::settle(
            "headers/abi/layout.txt",
            &layout::text(&headers)?,
            options.check,
            FIX,
        )?;
    } else {
        println!("SKIP headers/abi/layout.txt: the 32-bit figures need a compiler for x86");
    }
    if !options.check {
        return Ok(());
    }
    let workspace = Workspace::load()?;
    let built = workspace.built(options.dev);
    check_library(&built.join("libvipl.so"), &names)?;
    for plugin in workspace.plugins() {
        let file = built.join(format!("lib{plugin}.so"));
        check_exports(&file, &format!("{PLUGIN_SYMBOL}\n"))?;
    }
    Ok(())
}

fn check_library(file: &Path, names: &str) -> Result {
    check_exports(file, names)?;
    let dynamic = output(Command::new("readelf").args(["-dW"]).arg(file))?;
    for wanted in ["Library soname: [libvipl.so.1]", "NODELETE"] {
        if !dynamic.contains(wanted) {
            return Err(format!("{}: no {wanted} in its dynamic section", file.display()).into());
        }
    }
    println!("{}: soname libvipl.so.1, stays mapped", file.display());
    Ok(())
}

/// Compares the defined dynamic symbols of a library with a sorted list.
fn check_exports(file: &Path, names: &str) -> Result {
    if !file.exists() {
        return Err(format!("{} is not built; `cargo build --release`", file.display()).into());
    }
    let table = output(
        Command::new("nm")
            .args(["-D", "--defined-only", "-P"])
            .arg(file),
    )?;
    let mut found: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    found.sort_unstable();
    let found = found.join("\n") + "\n";
    if found != names {
        let what = diff::describe(names, &found);
        return Err(format!(
            "{} exports other names than it should, {what}",
            file.display()
        )
        .into());
    }
    println!(
        "{}: exports {} names, as it should",
        file.display(),
        found.lines().count()
    );
    Ok(())
}

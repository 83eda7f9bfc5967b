//! `cargo xtask bare`: steps of `cargo xtask ci` as on a machine that has none of the optional tools.
//!
//! What each tool is for is skipped there, with the reason, and nothing fails: the second command of the README is for
//! a machine with Rust and a C compiler. The optional tools are those that `.ci/run` installs, but for the compiler.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use crate::Result;
use crate::workspace::{Workspace, root};

/// What every machine has to have.
const NEEDED: &[&str] = &["gcc", "nm", "mkdir", "unshare"];
/// Steps that look for tools.
const STEPS: &str = "xtask,headers,deny,man,install,abi";

/// Runs the command; true if all is well.
pub(crate) fn run() -> Result<bool> {
    let path = path_without(&optional()?)?;
    // A program of its own, whose count is not that of `ci`.
    let status = Command::new(std::env::current_exe()?)
        .args(["ci", "--uncounted", "--only", STEPS])
        .env("PATH", path)
        .current_dir(root())
        .status()?;
    Ok(status.success())
}

/// Names of the tools that `.ci/run` installs, one `name:package` a line.
fn optional() -> Result<Vec<String>> {
    let text = fs::read_to_string(root().join(".ci/run"))?;
    let list = text
        .split("tools=(")
        .nth(1)
        .and_then(|rest| rest.split(')').next());
    let names: Vec<String> = list
        .unwrap_or_default()
        .lines()
        .filter_map(|line| Some(line.trim().split_once(':')?.0.to_owned()))
        .filter(|name| !NEEDED.contains(&name.as_str()))
        .collect();
    if names.is_empty() {
        return Err(".ci/run has no list of tools".into());
    }
    Ok(names)
}

/// A folder that has all programs of the path but these, by other versions' names (`clang-14`) neither.
fn path_without(tools: &[String]) -> Result<PathBuf> {
    let folder = Workspace::load()?.target.join("ci/bare");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    for entry in std::env::split_paths(&path)
        .flat_map(fs::read_dir)
        .flatten()
    {
        let entry = entry?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let is_tool = |tool: &String| {
            text.strip_prefix(tool.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        if !tools.iter().any(is_tool) {
            // The first of a name is the one that the path finds.
            let _ = symlink(entry.path(), folder.join(&name));
        }
    }
    Ok(folder)
}

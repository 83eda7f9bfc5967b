//! `cargo xtask rpm`: RPM packages of what `cargo xtask install` installs, by `packaging/vipl.spec`.
//!
//! With `--trial` the packages are installed below an empty folder by rpm itself and removed again; nothing may stay. Dependencies
//! and scripts are left out there: it is not a system. Debian's packages have a trial that is one (`cargo xtask deb --trial`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::install;
use crate::workspace::{Workspace, in_path, output, root};

/// Arguments of `cargo xtask rpm`.
#[derive(Args)]
pub(crate) struct Options {
    /// Folder of the built files [default: target/release]
    #[arg(long, value_name = "DIR")]
    built: Option<PathBuf>,
    /// Package what was built before
    #[arg(long)]
    no_build: bool,
    /// Install and remove the packages below an empty folder
    #[arg(long)]
    trial: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    if !in_path("rpmbuild") {
        println!("SKIP RPM packages: rpmbuild is not installed");
        return Ok(());
    }
    let workspace = Workspace::load()?;
    if !options.no_build && options.built.is_none() {
        install::build(&workspace, None)?;
    }
    let built = options.built.clone();
    let built = built.unwrap_or_else(|| workspace.target.join("release"));
    let folder = workspace.target.join("rpm");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let define = |name: &str, value: &Path| format!("{name} {}", value.display());
    let mut command = Command::new("rpmbuild");
    command.args(["-bb", "--quiet"]);
    for definition in [
        define("_topdir", &folder),
        define("source", &root()),
        define("built", &std::path::absolute(built)?),
        define("xtask", &std::env::current_exe()?),
        format!("version_ {}", workspace.version),
    ] {
        command.arg("--define").arg(definition);
    }
    output(command.arg(root().join("packaging/vipl.spec")))?;
    let mut packages = Vec::new();
    for processor in fs::read_dir(folder.join("RPMS"))? {
        for package in fs::read_dir(processor?.path())? {
            packages.push(package?.path());
        }
    }
    packages.sort();
    for package in &packages {
        let kib = fs::metadata(package)?.len() / 1024;
        println!("{kib:6} KiB  {}", package.display());
    }
    if options.trial {
        trial(&packages)?;
    }
    Ok(())
}

/// Installs, compares with what the packages list, removes.
fn trial(packages: &[PathBuf]) -> Result {
    let folder = tempfile::tempdir()?;
    let rpm = || {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(folder.path());
        command
    };
    let mut install = rpm();
    install.args(["--install", "--nodeps", "--noscripts", "--nosignature"]);
    output(install.args(packages))?;
    let listed = output(rpm().args(["--query", "--all", "--list"]))?;
    let mut count = 0;
    for path in listed.lines().filter(|line| line.starts_with('/')) {
        let staged = folder.path().join(path.trim_start_matches('/'));
        if fs::symlink_metadata(&staged).is_err() {
            return Err(format!("{path} was not installed").into());
        }
        count += 1;
    }
    if !folder.path().join("usr/include/vipl.h").exists() {
        return Err("the packages have no header".into());
    }
    let names = output(rpm().args(["--query", "--all", "--queryformat", "%{NAME}\n"]))?;
    output(
        rpm()
            .args(["--erase", "--nodeps", "--noscripts"])
            .args(names.lines()),
    )?;
    let mut left = Vec::new();
    files(folder.path(), &mut left)?;
    // rpm's own data base.
    left.retain(|path| {
        !["/rpm/", "/.rpmdb/"]
            .iter()
            .any(|own| path.to_string_lossy().contains(own))
    });
    if !left.is_empty() {
        return Err(format!("the removal left {left:?}").into());
    }
    println!(
        "rpm: {count} files of {} packages installed and removed",
        packages.len()
    );
    Ok(())
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

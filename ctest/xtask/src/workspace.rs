//! Where things are, and how to run other programs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.ancestors()
        .nth(2)
        .map_or(here.clone(), Path::to_path_buf)
}

/// The cargo that runs us.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The packages with the programs for users.
const OF_TOOLS: [&str; 4] = ["vipl-tools", "vipl-perf", "vipl-stat", "vipl-conformance"];

/// What cargo knows about the workspace: the products and where they are built.
pub(crate) struct Workspace {
    /// The target directory.
    pub target: PathBuf,
    /// The version all crates have.
    pub version: String,
    packages: Vec<Value>,
}

impl Workspace {
    /// Asks cargo.
    pub(crate) fn load() -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--no-deps", "--format-version", "1"]);
        let text = output(&mut command)?;
        let mut value: Value = serde_json::from_str(&text)?;
        let target = PathBuf::from(value["target_directory"].as_str().unwrap_or("target"));
        let packages = match value["packages"].take() {
            Value::Array(packages) => packages,
            _ => return Err("cargo metadata lists no packages".into()),
        };
        let version = packages
            .iter()
            .find(|package| package["name"] == "vipl")
            .and_then(|package| package["version"].as_str())
            .ok_or("the workspace has no package vipl")?
            .to_owned();
        Ok(Self {
            target,
            version,
            packages,
        })
    }

    /// Folder of what is built for the tests, or as a release.
    pub(crate) fn built(&self, dev: bool) -> PathBuf {
        self.target.join(if dev { "debug" } else { "release" })
    }

    /// What cargo says about each package.
    pub(crate) fn packages(&self) -> &[Value] {
        &self.packages
    }

    /// The folder of each package, sorted.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        let manifests = self
            .packages
            .iter()
            .filter_map(|package| package["manifest_path"].as_str());
        let mut folders: Vec<PathBuf> = manifests
            .filter_map(|manifest| Some(Path::new(manifest).parent()?.to_owned()))
            .collect();
        folders.sort();
        folders
    }

    /// The packages that may be published, sorted.
    pub(crate) fn published(&self) -> Vec<String> {
        // `publish` lists the registries; it is empty if there is none, and null if all are permitted.
        let packages = self
            .packages
            .iter()
            .filter(|package| package["publish"].is_null());
        let mut names: Vec<String> = packages
            .filter_map(|package| package["name"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        names
    }

    /// The packages of what gets installed.
    pub(crate) fn products(&self) -> Vec<String> {
        let plugins = self.plugin_packages();
        let names = plugins.filter_map(|package| package["name"].as_str());
        let others = ["vipl", "kagent", "vipl-clan-device", "vipl-fi"];
        names
            .chain(others)
            .chain(OF_TOOLS)
            .map(str::to_owned)
            .collect()
    }

    /// Packages below `plugins/` that make a `cdylib`.
    fn plugin_packages(&self) -> impl Iterator<Item = &Value> {
        let folder = root().join("plugins");
        self.packages.iter().filter(move |package| {
            let manifest = package["manifest_path"].as_str().map(Path::new);
            let mut targets = package["targets"].as_array().into_iter().flatten();
            manifest.is_some_and(|path| path.starts_with(&folder))
                && targets.any(|target| has_kind(target, "cdylib"))
        })
    }

    /// Names of the plug-in libraries (`vipl_NAME`), sorted.
    pub(crate) fn plugins(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .plugin_packages()
            .flat_map(|package| package["targets"].as_array().into_iter().flatten())
            .filter(|target| has_kind(target, "cdylib"))
            .filter_map(|target| target["name"].as_str())
            .filter(|name| name.starts_with("vipl_"))
            .map(str::to_owned)
            .collect();
        names.sort();
        names
    }

    /// Names of the programs for users, sorted.
    pub(crate) fn tools(&self) -> Vec<String> {
        let all = OF_TOOLS.iter().flat_map(|package| self.programs(package));
        // The suite of this project stays here.
        let mut names: Vec<String> = all.filter(|name| name != "vipl-conformance").collect();
        names.sort();
        names
    }

    /// Names of the programs of one package, sorted.
    pub(crate) fn programs(&self, package: &str) -> Vec<String> {
        let mut names: Vec<String> = self
            .packages
            .iter()
            .filter(|candidate| candidate["name"] == package)
            .flat_map(|package| package["targets"].as_array().into_iter().flatten())
            .filter(|target| has_kind(target, "bin"))
            .filter_map(|target| target["name"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        names
    }
}

fn has_kind(target: &Value, kind: &str) -> bool {
    target["kind"]
        .as_array()
        .is_some_and(|kinds| kinds.iter().any(|k| k == kind))
}

/// Builds all that the tests and the checkers run, with the profile that they share. Always the whole workspace:
/// another choice of packages would give shared dependencies other features, and build them again.
pub(crate) fn build() -> Result {
    run(cargo().args(["build", "--workspace"]))
}

/// Folder of what [`build`] makes.
pub(crate) fn built() -> Result<PathBuf> {
    Ok(Workspace::load()?.target.join("debug"))
}

/// Whether a program can be started.
pub(crate) fn have(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a program that has no `--version` is there.
pub(crate) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Runs a program to its end with our own output; fails with its command line.
pub(crate) fn run(command: &mut Command) -> Result {
    let status = command
        .stdin(Stdio::null())
        .status()
        .map_err(|e| failed(command, &e))?;
    if status.success() {
        Ok(())
    } else {
        Err(failed(command, &status))
    }
}

/// Runs a program and returns its standard output; fails with its command line and its messages.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(command, &e))?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(
        command,
        &format!("{}\n{}", output.status, said.trim_end()),
    ))
}

fn failed(command: &Command, why: &dyn std::fmt::Display) -> Box<dyn std::error::Error> {
    let mut line = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    format!("`{line}`: {why}").into()
}

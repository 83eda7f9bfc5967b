//! The Python package: `python/tests`, by the interpreter of the system, with the library under test.
//!
//! The package needs an interpreter and nothing else. Without one the tests are skipped, but never in CI; there numpy is needed, too.

use std::path::{Path, PathBuf};

use vipl_ctest::{Agent, Run, find_tool, library_dir, skip, source};

/// The oldest version that the package promises.
const VERSION: &str = "import sys; sys.exit(sys.version_info < (3, 9))";

/// An interpreter: the system's, which has the system's packages, or the first one in PATH.
fn interpreter() -> Option<PathBuf> {
    let system = Some(PathBuf::from("/usr/bin/python3")).filter(|path| path.exists());
    let found = system.or_else(|| find_tool("python3")).filter(|python| {
        let run = Run::compatible(python).args(&["-c", VERSION]);
        run.finish().status.success()
    });
    if found.is_none() {
        assert!(
            std::env::var_os("CI").is_none(),
            "CI needs Python 3.9 or newer"
        );
        skip("there is no Python 3.9 or newer");
    }
    found
}

/// Runs the tests of one file.
fn passes(file: &str) {
    let Some(python) = interpreter() else { return };
    let package = source("../python");
    let folder = tempfile::tempdir().expect("a folder");
    let agent = Agent::start_in(folder.path()).expect("an agent");
    let mut run = Run::compatible(python)
        .args(&["-X", "dev", "-W", "error::ResourceWarning"])
        .arg(package.join("tests").join(format!("test_{file}.py")))
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .env("VIPL_AGENT", agent.socket())
        .seconds(400);
    if let Some(ci) = std::env::var_os("CI") {
        run = run.env("CI", ci);
    }
    let finished = run.finish();
    let shown = finished.report("the tests");
    assert!(finished.status.success() && !finished.timed_out, "{shown}");
    assert!(finished.stderr.contains("\nOK"), "{shown}");
    for warning in [
        "ResourceWarning",
        "Exception ignored",
        "DeprecationWarning",
        "panicked",
    ] {
        assert!(!finished.stderr.contains(warning), "{shown}");
    }
}

macro_rules! files {
    ($($file:ident)*) => {
        $(
            #[test]
            fn $file() {
                passes(stringify!($file));
            }
        )*
        const FILES: &[&str] = &[$(stringify!($file)),*];
    };
}

files! { abi asyncio connection examples lifetimes memory notebooks processes transfer }

#[test]
fn the_package_has_the_version_of_the_crates() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, line) in [
        ("pyproject.toml", format!("version = \"{version}\"\n")),
        ("vipl/__init__.py", format!("__version__ = \"{version}\"\n")),
    ] {
        let text = std::fs::read_to_string(source("../python").join(file)).expect(file);
        assert!(text.contains(&line), "{file} has no line {line}");
    }
}

#[test]
fn all_files_are_run() {
    let entries = std::fs::read_dir(source("../python/tests")).expect("the tests");
    let name = |path: &Path| {
        path.file_stem()?
            .to_str()?
            .strip_prefix("test_")
            .map(str::to_owned)
    };
    let mut found: Vec<String> = entries
        .filter_map(|entry| name(&entry.ok()?.path()))
        .collect();
    found.sort();
    assert_eq!(found, FILES);
}

//! `cargo xtask suites`: tests of others over the MPI provider: mpi4py's, with the MPICH that the Python package `mpich` brings.
//!
//! What the package registry does not give is skipped, with the reason. Modules of tests run one after the other, the quick ones
//! first, until the time is over.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::Result;
use crate::workspace::{Workspace, have, run};

const MPI4PY: &str = "mpi4py==4.1.2";
const MPICH: &str = "mpich==5.0.2";
/// Tests of transfers; the first ones take a second each on two processors.
const MODULES: &[&str] = &[
    "test_msgspec",
    "test_p2p_buf",
    "test_p2p_buf_matched",
    "test_cco_buf",
    "test_win",
    "test_rma",
    "test_rma_nb",
    "test_cco_nb_buf",
    "test_cco_vec",
    "test_p2p_obj",
    "test_cco_obj",
    "test_spawn",
];
/// A module that has not ended by then has failed, on a busy machine as well.
const MODULE_SECONDS_MAX: u64 = 300;

/// Arguments of `cargo xtask suites`.
#[derive(Args)]
pub(crate) struct Options {
    /// Begin no module after so many seconds
    #[arg(long, default_value_t = 180)]
    within: u64,
    /// Only these modules
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs them; a module that fails fails the command.
pub(crate) fn run_suites(options: &Options) -> Result {
    for tool in ["python3", "timeout"] {
        if !have(tool) {
            println!("SKIP suites: there is no {tool}");
            return Ok(());
        }
    }
    let target = Workspace::load()?.target;
    let place = target.join("suites");
    std::fs::create_dir_all(&place)?;
    if let Err(why) = fetch(&place) {
        println!("SKIP suites: {MPI4PY} and {MPICH} cannot be had: {why}");
        return Ok(());
    }
    // As it is installed: the wrapper, the provider and the library below one prefix.
    let prefix = place.join("prefix");
    run(Command::new(std::env::current_exe()?)
        .args(["install", "--no-build", "--built"])
        .arg(target.join("debug"))
        .arg("--prefix")
        .arg(&prefix))?;
    let begun = Instant::now();
    let chosen = MODULES.iter().filter(|module| {
        options.only.is_empty() || options.only.iter().any(|only| only == *module)
    });
    let mut failed = Vec::new();
    for module in chosen {
        if begun.elapsed() > Duration::from_secs(options.within) {
            println!("SKIP {module}: no time was left");
            continue;
        }
        match run(&mut of(module, &place, &prefix)) {
            Ok(()) => println!("{module}: passed"),
            Err(why) => failed.push(format!("{module}: {why}")),
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(failed.join("; ").into())
    }
}

/// The packages and the tests, which are in the source of one of them only.
fn fetch(place: &Path) -> Result {
    let python = place.join("venv/bin/python");
    if !python.exists() {
        run(Command::new("python3")
            .args(["-m", "venv"])
            .arg(place.join("venv")))?;
    }
    let pip = || {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
        pip
    };
    run(pip().args(["install", MPICH, MPI4PY, "setuptools", "wheel"]))?;
    if tests(place).is_none() {
        run(pip()
            .args([
                "download",
                "--no-deps",
                "--no-build-isolation",
                "--no-binary",
                ":all:",
                MPI4PY,
            ])
            .arg("--dest")
            .arg(place))?;
        let source = format!("{}.tar.gz", MPI4PY.replace("==", "-"));
        run(Command::new("tar")
            .arg("-xzf")
            .arg(place.join(source))
            .arg("-C")
            .arg(place))?;
    }
    tests(place)
        .map(|_| ())
        .ok_or_else(|| "there are no tests in the source".into())
}

/// The program of all tests.
fn tests(place: &Path) -> Option<PathBuf> {
    let main = place.join(MPI4PY.replace("==", "-")).join("test/main.py");
    main.exists().then_some(main)
}

/// One module with two ranks.
fn of(module: &str, place: &Path, prefix: &Path) -> Command {
    let mut job = Command::new("timeout");
    job.arg(MODULE_SECONDS_MAX.to_string())
        .arg(prefix.join("bin/vipl-mpirun"))
        .args(["-n", "2"])
        .arg(place.join("venv/bin/python"))
        .args(tests(place))
        .args(["--failfast", module])
        .env("VIPL_MPIRUN", place.join("venv/bin/mpiexec"))
        .current_dir(place);
    job
}

//! The provider as it would be installed, an agent, and jobs of MPI.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use vipl_ctest::{
    Agent, Finished, Run, Started, find_tool, library_dir, profile, skip, source, until_exit,
    work_dir,
};

/// Seconds that a job may take.
pub(crate) const PATIENCE: u64 = 240;

/// Where the provider and the agent are.
pub(crate) struct Place {
    /// The folder for `FI_PROVIDER_PATH`.
    pub(crate) folder: PathBuf,
    /// The socket of the agent of this test program.
    pub(crate) agent: PathBuf,
}

/// Puts the provider into a folder beside the library under test.
pub(crate) fn mpi() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        // First: it builds the library, if that is wanted.
        let library = library_dir();
        let folder = library.join("libfabric");
        if std::env::var_os("CTEST_LIBDIR").is_none() {
            install(&folder);
        }
        let dir = tempfile::tempdir().expect("a folder");
        let agent = Agent::start_in(dir.path()).expect("an agent");
        let socket = agent.socket().to_owned();
        until_exit((agent, dir));
        Place {
            folder,
            agent: socket,
        }
    })
}

/// Cargo does not build a dynamic library for the tests of its package.
fn install(folder: &Path) {
    let built = work_dir().parent().expect("target/PROFILE").to_owned();
    if std::env::var_os("CTEST_NO_BUILD").is_none() {
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile", profile(), "-pvipl-fi"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", built.parent().expect("a target folder"))
            .status()
            .expect("cargo");
        assert!(status.success(), "the provider could not be built");
    }
    fs::create_dir_all(folder).expect("a folder for the provider");
    let new = folder.join("libvipl-fi.new");
    fs::copy(built.join("libfi_vipl.so"), &new).expect("the provider");
    fs::rename(new, folder.join("libvipl-fi.so")).expect("rename");
}

/// Whether there is an Open MPI that can use libfabric.
pub(crate) fn has_mpi() -> bool {
    static HAS: OnceLock<Result<(), String>> = OnceLock::new();
    let has = HAS.get_or_init(|| {
        for tool in ["mpicc", "mpirun", "ompi_info"] {
            find_tool(tool).ok_or_else(|| format!("there is no {tool} of Open MPI"))?;
        }
        let shown = Command::new("ompi_info")
            .output()
            .map_err(|error| error.to_string())?;
        match String::from_utf8_lossy(&shown.stdout).contains("MCA mtl: ofi") {
            true => Ok(()),
            false => Err("this Open MPI was built without libfabric".to_owned()),
        }
    });
    if let Err(reason) = has {
        skip(reason);
    }
    has.is_ok()
}

/// Compiles a program of `programs/`; None if there is no MPI.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    static ONE: Mutex<()> = Mutex::new(());
    if !has_mpi() {
        return None;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let program = work_dir().join(format!("mpi-{name}"));
    let new = program.with_extension("new");
    let status = Command::new("mpicc")
        .args(["-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&new)
        .arg(source(format!("../mpi/tests/programs/{name}.c")))
        .status()
        .expect("mpicc");
    assert!(status.success(), "{name}.c does not compile");
    fs::rename(new, &program).expect("rename");
    Some(program)
}

/// The wrapper.
pub(crate) fn wrapper() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vipl-mpirun")
}

/// One job.
pub(crate) struct Job {
    run: Run,
    ranks: usize,
    program: PathBuf,
    arguments: Vec<String>,
}

impl Job {
    /// Of a program over a device.
    pub(crate) fn new(device: &str, ranks: usize, program: &Path) -> Job {
        let place = mpi();
        // By the wrapper: what users get, and no settings of the tests' own.
        let run = Run::compatible(wrapper())
            .env("VIPL_FI_PATH", place.folder.as_os_str())
            .env("FI_VIPL_DEVICE", device)
            .env("VIPL_AGENT", place.agent.as_os_str())
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .seconds(PATIENCE);
        Job {
            run,
            ranks,
            program: program.to_owned(),
            arguments: Vec::new(),
        }
    }

    /// With an argument for the program.
    pub(crate) fn arg(mut self, argument: &str) -> Job {
        self.arguments.push(argument.to_owned());
        self
    }

    /// With a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Job {
        self.run = self.run.env(name, value);
        self
    }

    /// In a folder.
    pub(crate) fn within(mut self, folder: &Path) -> Job {
        self.run = self.run.arg("--wdir").arg(folder);
        self
    }

    /// Runs it.
    pub(crate) fn run(self) -> Finished {
        self.run_while(|_| ())
    }

    /// Runs it, one at a time, as each has more processes than a small machine has processors. Meanwhile something
    /// happens, which may check whether the job still runs.
    pub(crate) fn run_while(self, happens: impl FnOnce(&mut Started)) -> Finished {
        static ONE: Mutex<()> = Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut run = self
            .run
            .arg("--oversubscribe")
            .arg("-n")
            .arg(self.ranks.to_string())
            .arg(&self.program);
        for argument in &self.arguments {
            run = run.arg(argument);
        }
        let mut started = run.start();
        happens(&mut started);
        started.finish()
    }
}

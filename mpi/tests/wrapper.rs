//! What `vipl-mpirun` passes to a launcher, and what it reports. The launchers are scripts that print what they get, so these tests
//! need no MPI.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use vipl_ctest::{Finished, Run};

const OPEN_MPI: &str = "mpirun (Open MPI) 4.1.4";
const OPEN_MPI_5: &str = "mpirun (Open MPI) 5.0.8";

/// A provider that is an empty file, and a launcher of some version.
struct Place {
    dir: tempfile::TempDir,
}

fn script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("its mode");
}

impl Place {
    fn new(version: &str) -> Place {
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("libvipl-fi.so"), "").expect("a file");
        script(
            &dir.path().join("launcher"),
            &format!(
                "if [ \"$1\" = --version ]; then echo \"{version}\"; exit; fi\n\
                 env | grep -E '^(FI_|OMPI_|MPIR_)'\necho \"arguments: $*\""
            ),
        );
        script(&dir.path().join("program"), "");
        Place { dir }
    }

    fn path(&self, name: &str) -> String {
        let path: PathBuf = self.dir.path().join(name);
        path.to_str().expect("a path").to_owned()
    }

    fn hosts(&self, text: &str) -> String {
        fs::write(self.path("hosts"), text).expect("a file of hosts");
        self.path("hosts")
    }

    /// Runs the wrapper.
    fn run(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Finished {
        let wrapper = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vipl-mpirun");
        let mut run = Run::compatible(&wrapper)
            .env("VIPL_FI_PATH", self.path(""))
            .env("VIPL_MPIRUN", self.path("launcher"));
        for (name, value) in environment {
            run = run.env(name, value);
        }
        for argument in arguments {
            run = run.arg(argument);
        }
        run.finish()
    }
}

/// Variables and arguments of a run.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

/// The default device stays on one host, so a job on other hosts gets another one.
#[test]
fn a_job_on_other_hosts_gets_a_device_that_reaches_them() {
    let place = Place::new(OPEN_MPI);
    let own = fs::read_to_string("/proc/sys/kernel/hostname").expect("this host's name");
    let own = format!("{}:2", own.trim());
    let far = place.hosts("# two\nlocalhost slots=2\nfar.example.org slots=2\n");
    let program = place.path("program");
    let ranks = place.path("ranks");
    fs::write(&ranks, "rank 0=localhost slot=0\nrank 1=far slot=0\n").expect("a file");
    let elsewhere: [Case<'_>; 14] = [
        (&[], &["--host", "far"]),
        (&[], &["-n", "2", "-H", "localhost,far:4"]),
        (&[], &["--mca", "a", "b", "-host", "user@192.0.2.7"]),
        (&[], &["--oversubscribe", "--host=far"]),
        (&[], &["-x", "NAME", "--map-by", "node", "--hostfile", &far]),
        (&[], &["-machinefile", &far]),
        (&[], &["--rankfile", &ranks]),
        (&[], &["-f", "/nowhere/hosts"]),
        (&[], &["-genv", "A", "B", "-hosts", "far,near"]),
        (&[], &["--hosts", "2001:db8::7"]),
        (&[("SLURM_JOB_NUM_NODES", "2")], &[]),
        (&[("PBS_NODEFILE", &far)], &[]),
        (&[("LSB_MCPU_HOSTS", "localhost 2 far 2")], &[]),
        (&[("OMPI_MCA_orte_default_hostfile", &far)], &[]),
    ];
    for (environment, arguments) in elsewhere {
        let arguments: Vec<&str> = arguments.iter().copied().chain([&*program]).collect();
        let finished = place.run(environment, &arguments);
        let passed = finished.stdout.contains("FI_VIPL_DEVICE=ip:\n")
            && finished.stdout.contains("-x FI_VIPL_DEVICE")
            && finished.stderr.contains("runs over ip:");
        assert!(passed, "{}", finished.report("a job on other hosts"));
    }
    let near = place.hosts("localhost slots=4\n127.0.0.1\n");
    let here: [Case<'_>; 7] = [
        (&[], &["-n", "2"]),
        (&[], &["--host", &own, "-n", "2"]),
        (&[], &["--host", "localhost:4,127.0.0.1,[::1]:2"]),
        (&[], &["--hostfile", &near]),
        (&[("SLURM_JOB_NUM_NODES", "1")], &[]),
        (&[("LSB_MCPU_HOSTS", "localhost 2")], &[]),
        (&[("FI_VIPL_DEVICE", "gnic2:eth0")], &["--host", "far"]),
    ];
    for (environment, arguments) in here {
        // What the program is given is no option of the launcher.
        let arguments: Vec<&str> = arguments
            .iter()
            .copied()
            .chain([&*program, "--host", "far"])
            .collect();
        let finished = place.run(environment, &arguments);
        let left = !finished.stdout.contains("FI_VIPL_DEVICE=ip:") && finished.stderr.is_empty();
        assert!(left, "{}", finished.report("a job on this host"));
    }
}

/// One-sided calls are left to no component that brings a network of its own.
#[test]
fn one_sided_calls_have_no_other_network() {
    let program = |place: &Place| place.path("program");
    let place = Place::new(OPEN_MPI);
    let finished = place.run(&[], &["-n", "2", &program(&place)]);
    assert!(
        finished.stdout.contains("OMPI_MCA_osc=^rdma,ucx\n")
            && finished.stdout.contains("-x OMPI_MCA_osc "),
        "{}",
        finished.report("Open MPI 4")
    );
    let place = Place::new(OPEN_MPI_5);
    let finished = place.run(&[], &["-n", "2", &program(&place)]);
    let passed = finished.stdout.contains("OMPI_MCA_osc=^ucx\n");
    assert!(passed, "{}", finished.report("Open MPI 5"));
}

/// `ofi_rxm` takes its locks even in a program with one thread, unless the MPI asks for progress by its own calls.
#[test]
fn open_mpi_makes_progress_by_its_calls() {
    for version in [OPEN_MPI, OPEN_MPI_5] {
        let place = Place::new(version);
        let program = place.path("program");
        let finished = place.run(&[], &["-n", "2", &program]);
        for name in ["control", "data"] {
            let name = format!("OMPI_MCA_mtl_ofi_{name}_progress");
            let passed = finished.stdout.contains(&format!("{name}=manual\n"))
                && finished.stdout.contains(&format!("-x {name} "));
            assert!(passed, "{}", finished.report(version));
            let other = place.run(&[(&name, "auto")], &["-n", "2", &program]);
            let obeyed = other.stdout.contains(&format!("{name}=auto\n"));
            assert!(obeyed, "{}", other.report(version));
        }
    }
}

/// Open MPI takes the first offer, so that of `ofi_rxm` is kept from version 4 unless the user wants it, and from version 5 if the user
/// does not want it.
#[test]
fn open_mpi_4_has_messages_with_tags_from_the_provider() {
    const EXCLUDED: &str = "OMPI_MCA_mtl_ofi_provider_exclude=vipl;ofi_rxm\n";
    let run = |version, environment: &[(&str, &str)]| {
        let place = Place::new(version);
        let program = place.path("program");
        place.run(environment, &["-n", "2", &program])
    };
    const SET: [(&str, &str); 1] = [("FI_VIPL_RDM", "1")];
    for environment in [&[] as &[_], &SET] {
        let finished = run(OPEN_MPI, environment);
        let passed = [EXCLUDED, "-x OMPI_MCA_mtl_ofi_provider_exclude "];
        let passed = passed.iter().all(|part| finished.stdout.contains(part))
            && finished.stdout.contains("-x FI_VIPL_RDM ") != environment.is_empty();
        assert!(passed, "{}", finished.report("Open MPI 4"));
    }
    let finished = run(OPEN_MPI_5, &SET);
    let passed = [
        "FI_PROVIDER=^ofi_rxm\n",
        "FI_VIPL_DEVICE=via_lo\n",
        "OMPI_MCA_mtl_ofi_provider_include=vipl\n",
        "-x OMPI_MCA_mtl_ofi_provider_include ",
    ];
    let passed = passed.iter().all(|part| finished.stdout.contains(part));
    assert!(passed, "{}", finished.report("Open MPI 5"));
    for (version, environment) in [
        (OPEN_MPI, &[("FI_VIPL_RDM", "0")] as &[_]),
        (OPEN_MPI_5, &[]),
        (
            OPEN_MPI_5,
            &[("FI_VIPL_RDM", "1"), ("FI_PROVIDER", "vipl;ofi_rxm")],
        ),
    ] {
        let other = run(version, environment);
        let left = other.stderr.is_empty()
            && !other.stdout.contains(EXCLUDED)
            && !other.stdout.contains("^ofi_rxm");
        assert!(left, "{}", other.report(version));
    }
}

/// What was set before is obeyed, and said when the job does not run over VIPL then.
#[test]
fn variables_that_keep_vipl_out_are_passed() {
    let place = Place::new(OPEN_MPI);
    let both = format!("/nowhere:{}", place.path(""));
    let program = place.path("program");
    for (name, value, said) in [
        ("FI_PROVIDER", "tcp", "leaves the provider vipl out"),
        ("FI_PROVIDER", "^vipl", "leaves the provider vipl out"),
        ("FI_PROVIDER", "^tcp", ""),
        ("FI_PROVIDER", "vipl;ofi_rxm", ""),
        ("FI_PROVIDER_PATH", "/nowhere", "has no libvipl-fi.so"),
        ("FI_PROVIDER_PATH", &both, ""),
        ("FI_VIPL_DEVCE", "ip:", "FI_VIPL_DEVCE is no setting"),
        ("FI_VIPL_LINGER", "5", ""),
        ("OMPI_MCA_pml", "ob1", "messages do not go over VIPL"),
    ] {
        let finished = place.run(&[(name, value)], &["-n", "2", &program]);
        let obeyed = finished.stdout.contains(&format!("{name}={value}\n"));
        let named = match said {
            "" => finished.stderr.is_empty(),
            said => finished.stderr.contains(said),
        };
        assert!(obeyed && named, "{}", finished.report(name));
    }
    let finished = place.run(&[("FI_VIPL_LIBRARY", "/nowhere")], &["-n", "2", &program]);
    let ended = finished.status.code() == Some(1) && finished.stderr.contains("FI_VIPL_LIBRARY");
    assert!(ended, "{}", finished.report("no library"));
}

/// An MPICH that cannot use libfabric would run over its own network without a word.
#[test]
fn an_mpich_without_libfabric_is_refused() {
    for (version, runs) in [
        (
            "HYDRA build details: '--with-device=ch4:ucx' -fprofile",
            false,
        ),
        ("HYDRA build details: '--with-device=ch3:nemesis'", false),
        ("HYDRA build details: '--with-device=ch4:ofi'", true),
        ("HYDRA build details: of somebody's", true),
    ] {
        let place = Place::new(version);
        let finished = place.run(&[], &["-n", "2", &place.path("program")]);
        let good = finished.status.success() == runs
            && finished.stderr.contains("without libfabric") != runs;
        assert!(good, "{}", finished.report(version));
    }
    // Debian's, where it is installed.
    let Some(launcher) = vipl_ctest::find_tool("mpirun.mpich") else {
        vipl_ctest::skip("there is no mpirun.mpich");
        return;
    };
    let place = Place::new("");
    let launcher = launcher.to_str().expect("a path");
    let finished = place.run(&[("VIPL_MPIRUN", launcher)], &["-n", "1", "true"]);
    let refused = finished.stderr.contains("without libfabric");
    assert!(refused, "{}", finished.report("Debian's MPICH"));
}

//! `cargo xtask smoke`: what is installed works from where it is installed.
//!
//! Installs to a temporary prefix, compiles a C program with the flags of pkg-config (C, C++, and
//! the archive) and by CMake, runs each, builds the examples and programs of the course, walks through docs/DIAGNOSIS.md, prints values in gdb,
//! runs an installed tool and a job of MPI, uninstalls, and looks for left-over files. Each file must belong to
//! the packages, too.

mod consumers;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::install::{self, pages};
use crate::place::Place;
use crate::uninstall;
use crate::workspace::{Workspace, have, output, root};
use crate::{Result, static_libs, walks};

/// The program.
const PROGRAM: &str = include_str!("smoke.c");
/// A program of MPI.
const MPI_PROGRAM: &str = "mpi/tests/programs/tour.c";
/// A device of the plug-in that needs no hardware.
const DEVICE: &str = "VINIC";
const DEVICE_MAP: &str = "*=loopback:";

/// Arguments of `cargo xtask smoke`.
#[derive(Args)]
pub(crate) struct Options {
    /// Install what the tests run, and build no release
    #[arg(long)]
    dev: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    static_libs::check()?;
    let folder = tempfile::tempdir()?;
    let prefix = folder.path().join("prefix");
    let place = || Place {
        prefix: prefix.clone(),
        destdir: None,
        libdir: "lib".to_owned(),
    };
    install::run(&install::Options {
        place: place(),
        no_build: options.dev,
        book: false,
        built: Some(Workspace::load()?.built(options.dev)),
    })?;
    let source = folder.path().join("smoke.c");
    fs::write(&source, PROGRAM)?;
    let bench = Bench {
        prefix: &prefix,
        folder: folder.path(),
        source: &source,
    };
    bench.shared("cc", &["-std=c99"])?;
    if have("c++") {
        bench.shared("c++", &["-xc++", "-std=c++17"])?;
    }
    if have("pkg-config") {
        bench.archive()?;
    } else {
        println!("SKIP the archive and its list of libraries: pkg-config is not installed");
    }
    consumers::cmake(&bench)?;
    consumers::examples(&bench)?;
    consumers::course(&bench)?;
    let links = pages::check(&prefix.join("share/doc/vipl"))?;
    println!("documents: {links} links lead somewhere");
    walks::walk(&prefix, false)?;
    consumers::gdb(&bench)?;
    bench.tool()?;
    bench.manual()?;
    bench.python()?;
    bench.job()?;
    packages::check(&prefix, files(&prefix)?.iter().map(PathBuf::as_path))?;
    uninstall::run(&uninstall::Options { place: place() })?;
    let left = files(&prefix)?;
    if left.is_empty() {
        return Ok(());
    }
    Err(format!("uninstall left {left:?}").into())
}

/// One installed tree and a place for programs.
struct Bench<'a> {
    prefix: &'a Path,
    folder: &'a Path,
    source: &'a Path,
}

impl Bench<'_> {
    /// Links with the shared library and opens a device: plug-in and agent are found from there.
    fn shared(&self, compiler: &str, language: &[&str]) -> Result {
        let program = self.folder.join("shared");
        let mut command = self.compiler(compiler, language, &program);
        run_quietly(command.args(self.flags()?))?;
        let text = output(self.environment(Command::new(program).arg(DEVICE)))?;
        println!("{compiler}, shared: {}", text.trim().replace('\n', "; "));
        Ok(())
    }

    /// Links with the archive and the pinned list of system libraries.
    fn archive(&self) -> Result {
        let program = self.folder.join("archive");
        let mut command = self.compiler("cc", &["-std=c99"], &program);
        run_quietly(command.args(self.pkg_config_of("vipl-static", &["--cflags", "--libs"])?))?;
        let text = output(self.environment(&mut Command::new(program)))?;
        println!("cc, archive: {}", text.trim().replace('\n', "; "));
        Ok(())
    }

    /// An installed tool finds the library by itself.
    fn tool(&self) -> Result {
        let tool = self.prefix.join("bin/vipinfo");
        if !tool.exists() {
            return Err("vipinfo was not installed".into());
        }
        let text = output(self.environment(&mut Command::new(tool)))?;
        println!("vipinfo: {} lines", text.lines().count());
        Ok(())
    }

    /// `man` finds a page, and the page that it refers to.
    fn manual(&self) -> Result {
        if !have("man") {
            println!("SKIP the manual: man is not installed");
            return Ok(());
        }
        for (name, known) in [
            ("VipPostSend", "VipPostSend,"),
            ("VipPostRecv", "VipPostSend,"),
            ("VIP_DESCRIPTOR", "SegCount"),
        ] {
            let mut man = Command::new("man");
            man.env("MANPATH", self.prefix.join("share/man"));
            man.env("MANPAGER", "cat").env("LC_ALL", "C.UTF-8");
            if !output(man.arg(name))?.contains(known) {
                return Err(format!("man {name} shows another page").into());
            }
        }
        println!("man: pages found");
        Ok(())
    }

    /// The installed Python package finds the installed library by itself.
    fn python(&self) -> Result {
        const TEXT: &str = "import vipl; nic = vipl.open(); print(len(nic.alloc(64)), vipl.describe('version')['path'])";
        if !have("python3") {
            println!("SKIP the Python package: python3 is not installed");
            return Ok(());
        }
        let mut command = Command::new("python3");
        command.args(["-B", "-c", TEXT]);
        command.env("PYTHONPATH", self.prefix.join("lib/python3/dist-packages"));
        let text = output(self.environment(&mut command).env_remove("LD_LIBRARY_PATH"))?;
        let library = self.prefix.join("lib/libvipl.so.1").canonicalize()?;
        if text.trim() != format!("64 {}", library.display()) {
            return Err(format!("the Python package said {text}").into());
        }
        println!("python3: {}", text.trim());
        Ok(())
    }

    /// The installed wrapper runs a program of MPI over the installed provider, which finds the library by itself.
    fn job(&self) -> Result {
        let mpirun = output(Command::new("mpirun").arg("--version")).unwrap_or_default();
        if !mpirun.contains("Open MPI") || !have("mpicc") {
            println!("SKIP the wrapper for MPI: Open MPI is not installed");
            return Ok(());
        }
        let program = self.folder.join("job");
        let mut compiler = Command::new("mpicc");
        compiler.arg(root().join(MPI_PROGRAM));
        run_quietly(compiler.arg("-o").arg(&program))?;
        let mut wrapper = Command::new(self.prefix.join("bin/vipl-mpirun"));
        wrapper
            .args(["--oversubscribe", "-n", "2"])
            .arg(program)
            .arg("100000")
            .env_remove("FI_PROVIDER_PATH")
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let text = output(self.environment(&mut wrapper).env_remove("LD_LIBRARY_PATH"))?;
        println!("vipl-mpirun: {}", text.trim());
        Ok(())
    }

    fn compiler(&self, compiler: &str, language: &[&str], program: &Path) -> Command {
        let mut command = Command::new(compiler);
        command
            .args(language)
            .args(["-Wall", "-Wextra", "-pedantic", "-Werror"]);
        command.arg(self.source).args(["-xnone", "-o"]).arg(program);
        command
    }

    /// What a program is compiled with, on a machine without pkg-config too.
    fn flags(&self) -> Result<Vec<String>> {
        if have("pkg-config") {
            return self.pkg_config_of("vipl", &["--cflags", "--libs"]);
        }
        let prefix = self.prefix.display();
        Ok(vec![
            format!("-I{prefix}/include"),
            format!("-L{prefix}/lib"),
            "-lvipl".to_owned(),
        ])
    }

    fn pkg_config_of(&self, module: &str, arguments: &[&str]) -> Result<Vec<String>> {
        let mut command = Command::new("pkg-config");
        command
            .env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"))
            .args(arguments);
        let text = output(command.arg(module))?;
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }

    /// Nothing of the user's own: settings, files, agent.
    fn environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VIPL_") {
                command.env_remove(name);
            }
        }
        command
            .env("LD_LIBRARY_PATH", self.prefix.join("lib"))
            .env("VIPL_DEVICE_MAP", DEVICE_MAP)
            .env("VIPL_CONFIG", "/dev/null")
            .env("HOME", self.folder)
            .env("XDG_RUNTIME_DIR", self.folder)
    }
}

fn run_quietly(command: &mut Command) -> Result {
    output(command).map(drop)
}

/// All files below a folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

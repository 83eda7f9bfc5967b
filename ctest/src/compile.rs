//! Compiles C and C++ sources, with every warning an error.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use crate::installed::Installed;
use crate::library::{Build, library_dir};
use crate::made::{Made, sources_in};

/// Flags of every C source: plain C99.
const C_FLAGS: &[&str] = &["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"];
/// Flags of every C++ source.
const CXX_FLAGS: &[&str] = &["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror"];

/// The folder with `vipl.h` and `vipl_plugin.h`.
pub fn headers() -> PathBuf {
    match std::env::var_os("CTEST_HEADERS") {
        Some(dir) => dir.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../headers"),
    }
}

/// A file of this crate, or of its neighbours.
pub fn source(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A program on `PATH`.
pub fn find_tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Which compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompilerChoice {
    /// `$CC`, otherwise `cc`.
    C,
    /// `$CXX`, otherwise `c++`.
    Cxx,
    /// The C compiler for i386, as Debian names it.
    I386,
    /// A compiler of this name.
    Named(&'static str),
}

impl CompilerChoice {
    fn command(self) -> Command {
        let from_env = |variable: &str, default: &str| {
            std::env::var_os(variable).unwrap_or_else(|| OsString::from(default))
        };
        match self {
            CompilerChoice::C => Command::new(from_env("CC", "cc")),
            CompilerChoice::Cxx => Command::new(from_env("CXX", "c++")),
            CompilerChoice::I386 => Command::new("i686-linux-gnu-gcc"),
            CompilerChoice::Named(name) => Command::new(name),
        }
    }

    /// The file of the compiler.
    fn found(self) -> Option<PathBuf> {
        find_tool(self.command().get_program().to_str()?)
    }
}

/// One thing to compile.
pub struct Program {
    compiler: CompilerChoice,
    source: PathBuf,
    flags: Vec<OsString>,
    libraries: Vec<OsString>,
}

impl Program {
    /// A C source, or a C++ one if its name ends in `.cpp`; not linked with the library.
    pub fn new(source: impl Into<PathBuf>) -> Program {
        let source = source.into();
        let cxx = source
            .extension()
            .is_some_and(|extension| extension == "cpp");
        let (compiler, standard) = if cxx {
            (CompilerChoice::Cxx, CXX_FLAGS)
        } else {
            (CompilerChoice::C, C_FLAGS)
        };
        let mut flags: Vec<OsString> = standard.iter().map(OsString::from).collect();
        flags.extend(["-O1", "-g", "-pthread"].map(OsString::from));
        Program {
            compiler,
            source,
            flags,
            libraries: vec!["-ldl".into()],
        }
    }

    /// With another compiler.
    pub fn compiler(mut self, compiler: CompilerChoice) -> Program {
        self.compiler = compiler;
        self
    }

    /// With a further flag.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Program {
        self.flags.push(flag.into());
        self
    }

    /// For a build.
    pub fn of(self, build: Build) -> Program {
        match build {
            Build::Own => self,
            Build::I386 => self.compiler(CompilerChoice::I386),
        }
    }

    /// As a shared library.
    pub fn shared(self) -> Program {
        self.flag("-shared").flag("-fPIC")
    }

    /// Linked with the library under test, which the program then finds by itself.
    pub fn linked(self) -> Program {
        self.linked_in(library_dir())
    }

    /// Linked with the `libvipl.so` in a folder.
    pub fn linked_in(self, dir: &Path) -> Program {
        let mut program = self.with_library_in(dir);
        program.libraries.push(option("-Wl,-rpath,", dir));
        program
    }

    /// Linked with the `libvipl.so` in a folder; where it is when the program runs is not said.
    fn with_library_in(mut self, dir: &Path) -> Program {
        self.libraries.push(option("-L", dir));
        self.libraries.push("-lvipl".into());
        self
    }

    /// Compiles to this file.
    pub fn build(self, output: &Path) -> PathBuf {
        std::fs::create_dir_all(output.parent().expect("a folder")).expect("a folder");
        run(self.command().arg("-o").arg(output).args(&self.libraries));
        output.to_owned()
    }

    /// Compiles to this file, unless that was made by the same command of what is there now: the test programs of a run share
    /// it.
    fn build_once(self, output: &Path) {
        std::fs::create_dir_all(output.parent().expect("a folder")).expect("a folder");
        let mut command = self.command();
        command.args(&self.libraries);
        let made = Made::of(output);
        let shown = format!("{command:?}");
        if made.is_current(&shown) {
            return;
        }
        let begun = made.forget();
        // The old one may be running.
        let (new, list) = (output.with_extension("new"), output.with_extension("d"));
        command.args(["-MD", "-MF"]).arg(&list).arg("-o").arg(&new);
        run(&mut command);
        std::fs::rename(&new, output).expect("rename");
        let list = std::fs::read_to_string(&list).expect("the list of sources");
        let others = self.compiler.found().into_iter().chain(self.linked_with());
        made.write(&shown, begun, sources_in(&list).chain(others));
    }

    /// How it is compiled, but for the output and libraries.
    fn command(&self) -> Command {
        let mut command = self.compiler.command();
        command.args(&self.flags).arg("-I").arg(headers());
        command.arg(&self.source);
        command
    }

    /// Libraries of this project.
    fn linked_with(&self) -> impl Iterator<Item = PathBuf> {
        self.libraries.iter().filter_map(|option| {
            let folder = option.to_str()?.strip_prefix("-L")?;
            Some(Path::new(folder).join("libvipl.so"))
        })
    }
}

/// Runs a compiler, which must have nothing to say.
fn run(command: &mut Command) {
    let done = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        done.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

fn option(prefix: &str, dir: &Path) -> OsString {
    let mut option = OsString::from(prefix);
    option.push(dir);
    option
}

/// A program of `programs/`, linked with the library under test and compiled once per run.
pub fn program(name: &str) -> PathBuf {
    program_of(Build::Own, name)
}

/// The same, of another build.
pub fn program_of(build: Build, name: &str) -> PathBuf {
    if let Some(installed) = Installed::get() {
        return installed.programs.join(name);
    }
    once(build.work_dir().join("bin").join(name), || {
        of_programs(name).of(build).linked_in(&build.library_dir())
    })
}

/// A source of `programs/`.
fn of_programs(name: &str) -> Program {
    let file = match name {
        "cxx" => "cxx.cpp".to_owned(),
        _ => format!("{name}.c"),
    };
    let program = Program::new(source("programs").join(file));
    match name {
        "shadow" => program.flag("-rdynamic"),
        _ => program,
    }
}

/// Compiles a program of `programs/` to this file, to be installed: it is linked with the `libvipl.so` in the folder of a
/// build, and does not say where its library is.
pub fn install_program(name: &str, build: &Path, output: &Path) {
    // For the processor that this program is for, which may be emulated.
    let named = match std::env::consts::ARCH {
        "x86" => "i686-linux-gnu-gcc",
        "aarch64" => "aarch64-linux-gnu-gcc",
        _ => "",
    };
    let compiler = match find_tool(named).filter(|_| !named.is_empty()) {
        Some(_) => CompilerChoice::Named(named),
        None => CompilerChoice::C,
    };
    let program = of_programs(name).compiler(compiler);
    // Without the paths of this machine: what a check says names its source.
    let here = format!("-ffile-prefix-map={}=ctest", env!("CARGO_MANIFEST_DIR"));
    let program = program.flag("-g0").flag(here);
    program.with_library_in(build).build(output);
}

/// A program of `life/`.
pub(crate) fn life(name: &str) -> PathBuf {
    let build = Build::Own;
    once(build.work_dir().join("life").join(name), || {
        let mut include = OsString::from("-I");
        include.push(source("programs"));
        let extension = if name == "leaves" { "cpp" } else { "c" };
        Program::new(source(format!("life/{name}.{extension}")))
            .flag(include)
            .linked_in(&build.library_dir())
    })
}

/// A program of `programs/`, linked with a library that can do nothing: it works where the real one is loaded before.
pub fn program_over_stub(build: Build, name: &str) -> PathBuf {
    let dir = build.work_dir().join("over-stub");
    let library = once(dir.join("libvipl.so"), || {
        Program::new(source("programs/stub.c"))
            .of(build)
            .shared()
            .flag("-Wl,-soname,libvipl.so")
    });
    once(dir.join(name), || {
        Program::new(source("programs").join(format!("{name}.c")))
            .of(build)
            .linked_in(library.parent().expect("a folder"))
    })
}

/// The programs were compiled before: `CTEST_COMPILED`.
pub fn are_compiled() -> bool {
    std::env::var_os("CTEST_COMPILED").is_some()
}

/// Compiles a program to this file, once for all threads and test programs.
fn once(file: PathBuf, program: impl FnOnce() -> Program) -> PathBuf {
    type Once = Arc<OnceLock<()>>;
    static MADE: Mutex<Option<HashMap<PathBuf, Once>>> = Mutex::new(None);
    let once = {
        let mut made = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let made = made.get_or_insert_default();
        Arc::clone(made.entry(file.clone()).or_default())
    };
    once.get_or_init(|| {
        if !(are_compiled() && file.exists()) {
            program().build_once(&file);
        }
    });
    file
}

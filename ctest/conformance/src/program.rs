//! The program of a run: which build, and how it finds the library.
//!
//! The Kernel Agent and the devices that it starts always have 64 bits. In the default mode the programs of these runs
//! are linked with a library of another vendor and find this one by `LD_PRELOAD`, with `$LIB` in its path: one setting,
//! which the loader turns into the right library for either side.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use vipl_ctest::{Build, Run, program_of, program_over_stub, work_dir};

use crate::class::Class;
use crate::plan::{Mode, Planned};

/// The program of a run.
pub(crate) fn command(run: &Planned) -> Run {
    let (first, second) = run.class.builds();
    let is_preloaded = run.class != Class::Own && run.mode == Mode::Default;
    let file = |build| match is_preloaded {
        true => program_over_stub(build, run.entry.program),
        false => program_of(build, run.entry.program),
    };
    let mut command = match run.mode {
        Mode::Strict => Run::strict(file(first)),
        Mode::Default => Run::compatible(file(first)),
    };
    if run.class != Class::Own {
        // The programs know where their library is.
        command = command.without("LD_LIBRARY_PATH").of(first);
    }
    if first != second {
        command = command.env("CTEST_SECOND", file(second));
    }
    if is_preloaded {
        let library = libraries().join("$LIB/libvipl.so.1");
        command = command
            .env("CTEST_SECOND_PRELOAD", &library)
            .preload(&library);
    }
    command
}

/// Both libraries in folders named as `$LIB` is, on Debian and on other systems.
fn libraries() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let top = work_dir().join("classes");
        for (build, folders) in [
            (Build::Own, ["lib/x86_64-linux-gnu", "lib64"]),
            (Build::I386, ["lib/i386-linux-gnu", "lib32"]),
        ] {
            for folder in folders {
                let link = top.join(folder);
                std::fs::create_dir_all(link.parent().unwrap_or(&top)).expect("a folder");
                if std::fs::symlink_metadata(&link).is_err() {
                    symlink(build.library_dir(), &link).expect("a link to a library");
                }
            }
        }
        top
    })
}

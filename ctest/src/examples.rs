//! The programs of `examples/`, built by their Makefile as a user builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::compile::{headers, source};
use crate::library::{library_dir, work_dir};

/// The folder with all of them, linked with the library under test. The first call of a test program builds its own.
///
/// # Panics
/// If one does not compile without a warning.
pub fn examples() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let test = std::env::current_exe().expect("the path of the test program");
        let name = test.file_name().expect("a file");
        let dir = work_dir().join("examples").join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("a folder");
        let library = library_dir().display();
        let mut make = Command::new("make");
        make.current_dir(&dir).arg("-f");
        make.arg(source("../examples/Makefile"));
        make.arg("CFLAGS=-O2 -g -Werror");
        make.arg(format!("VIPL_CFLAGS=-I{}", headers().display()));
        make.arg(format!("VIPL_LIBS=-L{library} -lvipl"));
        let done = make.output().expect("make");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        dir
    })
}

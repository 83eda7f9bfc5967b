//! Files that are not what their names promise: a FIFO, a device, a folder, one that ends too early. Programs go on,
//! without waiting, and one line says which file it is.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use vipl_ctest::{Finished, Run, library_dir, program, work_dir};

/// A folder of this test alone, empty.
fn folder(name: &str) -> PathBuf {
    let dir = work_dir().join("files").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    dir
}

fn fifo(path: PathBuf) -> PathBuf {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a plain name");
    // SAFETY: a valid string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

/// The lines about a file.
fn lines<'a>(finished: &'a Finished, path: &Path) -> Vec<&'a str> {
    let path = path.to_str().expect("a plain name");
    let log = finished.log(&["warn", "error"]);
    log.into_iter().filter(|line| line.contains(path)).collect()
}

/// What stands where a file is expected, and what is said of it.
fn strange_files(dir: &Path) -> Vec<(PathBuf, &'static str)> {
    vec![
        (fifo(dir.join("fifo")), "it is a FIFO, not a file"),
        (dir.to_owned(), "it is a folder, not a file"),
        ("/dev/zero".into(), "it is a character device, not a file"),
    ]
}

#[test]
fn the_configuration() {
    for (path, said) in strange_files(&folder("configuration")) {
        let named = Run::compatible(program("opens")).env("VIPL_CONFIG", &path);
        let finished = named.arg("via_lo").allow(said).pass();
        let lines = lines(&finished, &path);
        assert!(
            lines.len() == 1 && lines[0].contains(said),
            "{}",
            finished.report(said)
        );
    }
    // The usual place.
    let home = folder("home");
    std::fs::create_dir_all(home.join(".config/vipl")).expect("a folder");
    let path = fifo(home.join(".config/vipl/vipl.conf"));
    let usual = Run::compatible(program("opens")).without("VIPL_CONFIG");
    let usual = usual.without("XDG_CONFIG_HOME").env("HOME", &home);
    let finished = usual.arg("via_lo").allow("FIFO").pass();
    assert_eq!(
        lines(&finished, &path).len(),
        1,
        "{}",
        finished.report("line")
    );
}

#[test]
fn the_table_of_hosts() {
    for (path, said) in strange_files(&folder("hosts")) {
        let finished = Run::compatible(program("failing"))
            .env("VIPL_HOSTS", &path)
            .arg("name")
            .finish();
        let lines = lines(&finished, &path);
        assert!(!finished.timed_out, "{}", finished.report("waits"));
        assert!(
            lines.len() == 1 && lines[0].contains(said),
            "{}",
            finished.report(said)
        );
    }
}

#[test]
fn the_log() {
    let path = fifo(folder("log").join("fifo"));
    let finished = Run::compatible(program("opens"))
        .env("VIPL_LOG_FILE", &path)
        .arg("via_lo")
        .allow("it is a FIFO that nobody reads")
        .pass();
    assert!(
        finished.stderr.contains("it is a FIFO that nobody reads"),
        "{}",
        finished.report("a line")
    );
    for device in ["/dev/null", "/dev/full", "/dev/stderr"] {
        Run::compatible(program("opens"))
            .env("VIPL_LOG_FILE", device)
            .env("VIPL_LOG", "trace")
            .arg("via_lo")
            .allow("")
            .pass();
    }
}

/// The plug-in is refused with one line that says why; other devices open.
fn refused_plugin(dir: &Path, said: &str) {
    let finished = Run::compatible(program("opens"))
        .env("VIPL_PLUGIN_PATH", dir)
        .arg("via_lo")
        .arg("strange:")
        .allow("")
        .pass();
    let path = dir.join("libvipl_strange.so");
    let about: Vec<&str> = lines(&finished, &path)
        .into_iter()
        .filter(|line| line.contains("refused"))
        .collect();
    assert!(
        about.len() == 1 && about[0].contains(said),
        "{}",
        finished.report(said)
    );
    assert!(
        finished.stdout.contains("via_lo opens as")
            && finished.stdout.contains("strange: does not open"),
        "{}",
        finished.report("what opens")
    );
}

/// A copy in progress, a full disk: the system's loader would be ended by SIGBUS, and the program with it.
#[test]
fn a_plugin_that_is_cut() {
    let dir = folder("cut");
    let whole = std::fs::read(library_dir().join("libvipl_tulip.so")).expect("a plug-in");
    for bytes in [0, 3, 40, 100, 1000, 3000, 4096, 20_000, 100_000, 200_000] {
        std::fs::write(dir.join("libvipl_strange.so"), &whole[..bytes]).expect("a file");
        let said = if bytes < 64 {
            "not a shared library"
        } else {
            "not complete"
        };
        refused_plugin(&dir, said);
    }
    // As long as it should be, and nothing in it yet.
    std::fs::write(dir.join("libvipl_strange.so"), vec![0; whole.len()]).expect("a file");
    refused_plugin(&dir, "not a shared library");
}

#[test]
fn a_plugin_that_is_something_else() {
    let dir = folder("fifo");
    fifo(dir.join("libvipl_strange.so"));
    refused_plugin(&dir, "it is a FIFO, not a file");
    let dir = folder("folder");
    std::fs::create_dir(dir.join("libvipl_strange.so")).expect("a folder");
    refused_plugin(&dir, "it is a folder, not a file");
    let dir = folder("machine");
    let mut other = std::fs::read(library_dir().join("libvipl_tulip.so")).expect("a plug-in");
    other[18] ^= 0x40;
    std::fs::write(dir.join("libvipl_strange.so"), other).expect("a file");
    refused_plugin(&dir, "another processor");
}

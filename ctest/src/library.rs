//! Where the library under test is: builds it with cargo once, and puts it together as if installed.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The plug-ins that come with the library.
const PLUGINS: [&str; 6] = ["loopback", "clan", "tulip", "gnic2", "ip", "sim"];

/// The folder `target/PROFILE` of this very build.
fn profile_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let exe = std::env::current_exe().expect("the path of the test program");
        // target/PROFILE/deps/test-HASH, target/PROFILE/examples/example, or target/PROFILE/program
        let dir = exe.parent().expect("a folder");
        match dir
            .file_name()
            .is_some_and(|name| name == "deps" || name == "examples")
        {
            true => dir.parent().expect("target/PROFILE").to_owned(),
            false => dir.to_owned(),
        }
    })
}

/// The folder that everything made by these tests goes to.
pub fn work_dir() -> PathBuf {
    let dir = profile_dir().join("ctest");
    fs::create_dir_all(&dir).expect("a folder for the tests");
    dir
}

/// A lock between the test programs of one target folder; held while the value lives.
pub(crate) struct FileLock(
    #[expect(dead_code, reason = "closing the file ends the lock")] fs::File,
);

impl FileLock {
    pub(crate) fn take() -> FileLock {
        let file = fs::File::create(work_dir().join("lock")).expect("a lock file");
        // SAFETY: a descriptor that `file` keeps open.
        let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        assert_eq!(locked, 0, "flock: {}", std::io::Error::last_os_error());
        FileLock(file)
    }
}

/// The folder with `libvipl.so.1`, the plug-ins that come with it and `vipkad`. The first call builds them:
/// cargo does not build the dynamic libraries of other packages for a test.
pub fn library_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        if let Some(dir) = std::env::var_os("CTEST_LIBDIR") {
            return dir.into();
        }
        let _lock = FileLock::take();
        // The workspace is built already; another choice of packages would build much of it again.
        if std::env::var_os("CTEST_NO_BUILD").is_none() {
            let plugins = PLUGINS.map(|plugin| format!("vipl-{plugin}"));
            let others = ["vipl", "kagent", "vipl-clan-device"].map(str::to_owned);
            build(plugins.iter().chain(&others));
        }
        let dir = work_dir().join("lib");
        fs::create_dir_all(&dir).expect("a folder for the library");
        // Copies, so that a build that goes on elsewhere does not change what is tested.
        copy("libvipl.so", &dir, "libvipl.so.1");
        for plugin in PLUGINS {
            let file = format!("libvipl_{plugin}.so");
            copy(&file, &dir, &file);
        }
        copy("vipkad", &dir, "vipkad");
        copy("vipl-clan", &dir, "vipl-clan");
        let link = dir.join("libvipl.so");
        if fs::symlink_metadata(&link).is_err() {
            std::os::unix::fs::symlink("libvipl.so.1", link).expect("a link to the library");
        }
        dir
    })
}

/// The cargo profile of this very build.
pub fn profile() -> &'static str {
    let dir = profile_dir().file_name().and_then(|name| name.to_str());
    match dir.expect("a profile") {
        "debug" => "dev",
        profile => profile,
    }
}

/// The folder with the example of a plug-in in Rust, which does not come with the library.
pub fn example_in_rust() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let _lock = FileLock::take();
        if std::env::var_os("CTEST_NO_BUILD").is_none() {
            build([&"vipl-example_rs".to_owned()].into_iter());
        }
        let dir = work_dir().join("example_rs");
        fs::create_dir_all(&dir).expect("a folder for the example");
        let file = "libvipl_example_rs.so";
        copy(file, &dir, file);
        dir
    })
}

fn build<'a>(packages: impl Iterator<Item = &'a String>) {
    let target = profile_dir().parent().expect("a target folder");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", profile()])
        .args(packages.map(|package| format!("-p{package}")))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("CARGO_TARGET_DIR", target)
        .status()
        .expect("cargo");
    assert!(status.success(), "the library could not be built");
}

/// Copies a built file, unless the copy is up to date. By way of a rename: the old one may be running.
fn copy(from: &str, dir: &Path, to: &str) {
    let (from, to) = (profile_dir().join(from), dir.join(to));
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified());
    let built = modified(&from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    if modified(&to).is_ok_and(|copied| copied >= built) {
        return;
    }
    let new = to.with_extension("new");
    fs::copy(&from, &new).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    fs::rename(&new, &to).expect("rename");
}

//! Where the library under test is: builds it with cargo once, and puts it together as if installed.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::installed::Installed;

/// The plug-ins that come with the library.
const PLUGINS: [&str; 7] = ["loopback", "clan", "tulip", "gnic2", "ip", "sim", "verbs"];

/// The layers that come with it.
const LAYERS: [&str; 4] = ["trace", "validate", "record", "fault"];

/// The folder `target/PROFILE` of this very build.
fn profile_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let exe = std::env::current_exe().expect("the path of the test program");
        // target/PROFILE/deps/test-HASH, target/PROFILE/examples/example, or target/PROFILE/program
        let dir = exe.parent().expect("a folder");
        let name = dir.file_name().and_then(|name| name.to_str());
        // An example of the documentation is built in a folder for temporary files.
        if name.is_some_and(|name| name.starts_with("rustdoctest")) {
            let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
            let target = std::env::var_os("CARGO_TARGET_DIR").map_or(own, PathBuf::from);
            return target.join(match cfg!(debug_assertions) {
                true => "debug",
                false => "release",
            });
        }
        match matches!(name, Some("deps" | "examples")) {
            true => dir.parent().expect("target/PROFILE").to_owned(),
            false => dir.to_owned(),
        }
    })
}

/// Which build of the library and of the C programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Build {
    /// The one that this program is part of.
    Own,
    /// The one for i386, made by `cargo xtask cross`.
    I386,
}

impl Build {
    /// The folder `target/PROFILE`, or what stands for it.
    fn profile_dir(self) -> PathBuf {
        let own = profile_dir();
        let (target, profile) = (own.parent(), own.file_name());
        match (self, target, profile) {
            (Build::I386, Some(target), Some(profile)) => {
                target.join("i686-unknown-linux-gnu").join(profile)
            }
            _ => own.to_owned(),
        }
    }

    /// Whether its library has been built.
    pub fn is_here(self) -> bool {
        self == Build::Own || self.profile_dir().join("libvipl.so").exists()
    }

    /// The folder that everything made for it goes to.
    pub fn work_dir(self) -> PathBuf {
        let dir = self.profile_dir().join("ctest");
        fs::create_dir_all(&dir).expect("a folder for the tests");
        dir
    }

    /// The folder with its library and plug-ins, as if installed. The agent and the devices beside them are those of
    /// the own build, which serve programs of both.
    pub fn library_dir(self) -> PathBuf {
        static DIR: OnceLock<PathBuf> = OnceLock::new();
        match self {
            Build::Own => library_dir().to_owned(),
            Build::I386 => DIR.get_or_init(|| put_together(self)).clone(),
        }
    }
}

/// The folder that everything made by these tests goes to.
pub fn work_dir() -> PathBuf {
    Build::Own.work_dir()
}

/// A lock between test programs; held while the value lives.
pub(crate) struct FileLock(
    #[expect(dead_code, reason = "closing the file ends the lock")] fs::File,
);

impl FileLock {
    /// The one of this file.
    pub(crate) fn take(path: &Path) -> FileLock {
        let file = fs::File::create(path).expect("a lock file");
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
        if let Some(installed) = Installed::get() {
            return installed.library.clone();
        }
        if let Some(dir) = std::env::var_os("CTEST_LIBDIR") {
            return dir.into();
        }
        let _lock = FileLock::take(&work_dir().join("lock"));
        // The workspace is built already; another choice of packages would build much of it again.
        if std::env::var_os("CTEST_NO_BUILD").is_none() {
            let plugins = PLUGINS.iter().map(|plugin| format!("vipl-{plugin}"));
            let layers = LAYERS.iter().map(|layer| format!("vipl-layer-{layer}"));
            let plugins: Vec<String> = plugins.chain(layers).collect();
            let others = ["vipl", "kagent", "vipl-clan-device"].map(str::to_owned);
            build(plugins.iter().chain(&others));
        }
        put_together(Build::Own)
    })
}

/// Puts the library, its plug-ins and the agent into one folder. Copies, so that a build that goes on elsewhere does not
/// change what is tested.
fn put_together(build: Build) -> PathBuf {
    let (from, dir) = (build.profile_dir(), build.work_dir().join("lib"));
    fs::create_dir_all(&dir).expect("a folder for the library");
    copy(&from.join("libvipl.so"), &dir, "libvipl.so.1");
    for plugin in PLUGINS {
        let file = format!("libvipl_{plugin}.so");
        copy(&from.join(&file), &dir, &file);
    }
    for layer in LAYERS {
        let file = format!("libvipl_layer_{layer}.so");
        copy(&from.join(&file), &dir, &file);
    }
    for program in ["vipkad", "vipl-clan"] {
        copy(&profile_dir().join(program), &dir, program);
    }
    let link = dir.join("libvipl.so");
    if fs::symlink_metadata(&link).is_err() {
        std::os::unix::fs::symlink("libvipl.so.1", link).expect("a link to the library");
    }
    dir
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
        let _lock = FileLock::take(&work_dir().join("lock"));
        if std::env::var_os("CTEST_NO_BUILD").is_none() {
            build([&"vipl-example_rs".to_owned()].into_iter());
        }
        let dir = work_dir().join("example_rs");
        fs::create_dir_all(&dir).expect("a folder for the example");
        let file = "libvipl_example_rs.so";
        copy(&profile_dir().join(file), &dir, file);
        dir
    })
}

/// The folder with `vipinfo` and `vip_pingpong`, for tests outside of their package.
pub fn tools_dir() -> &'static Path {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let _lock = FileLock::take(&work_dir().join("lock"));
        if std::env::var_os("CTEST_NO_BUILD").is_none() {
            build([&"vipl-tools".to_owned()].into_iter());
        }
    });
    profile_dir()
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
fn copy(from: &Path, dir: &Path, to: &str) {
    let to = dir.join(to);
    let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified());
    let built = modified(from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    if modified(&to).is_ok_and(|copied| copied >= built) {
        return;
    }
    let new = to.with_extension("new");
    fs::copy(from, &new).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    fs::rename(&new, &to).expect("rename");
}

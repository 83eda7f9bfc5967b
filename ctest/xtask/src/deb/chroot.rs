//! A fresh Debian in a folder, in which programs run that see nothing of this one but its kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::Result;
use crate::workspace::{output, run as run_program};

/// The release that the packages are for.
const RELEASE: &str = "bookworm";
/// What the packages depend on, and what a user has who compiles a program.
const PACKAGES: &str =
    "gcc,libc6-dev,libfabric1,libgcc-s1,pkg-config,python3,systemd-standalone-sysusers,util-linux";
/// The same for 32-bit programs beside them.
const PACKAGES_I386: &str = "gcc-multilib,libc6:i386,libgcc-s1:i386";
/// How long an archive of the folder is as good as a fresh one.
const ARCHIVE_TIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The folder; removed at the end.
pub(super) struct Chroot {
    folder: tempfile::TempDir,
}

impl Chroot {
    /// Unpacks the archive below `folder`, which is made first unless a recent one is there.
    pub(super) fn new(folder: &Path, architecture: &str, with_i386: bool) -> Result<Self> {
        let mut architectures = architecture.to_owned();
        if with_i386 {
            architectures.push_str(",i386");
        }
        // Another list of packages is another archive.
        let name = format!("{RELEASE}-{architectures}-{}.tar", PACKAGES.len());
        let archive = folder.join(name);
        let modified = archive.metadata().and_then(|file| file.modified());
        let is_recent = |time: SystemTime| time.elapsed().is_ok_and(|age| age < ARCHIVE_TIME_MAX);
        if modified.is_ok_and(is_recent) {
            println!("trial: {RELEASE} from {}", archive.display());
        } else {
            make(&archive, &architectures, with_i386)?;
        }
        let folder = tempfile::Builder::new().prefix("root").tempdir_in(folder)?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--numeric-owner", "--file"]);
        output(unpack.arg(&archive).arg("--directory").arg(folder.path()))?;
        fs::create_dir(folder.path().join("trial"))?;
        Ok(Self { folder })
    }

    /// A file or folder of `/trial`.
    pub(super) fn trial(&self, name: &str) -> PathBuf {
        self.folder.path().join("trial").join(name)
    }

    /// Runs a script of `/trial` as root: process 1 of namespaces of its own, so that nothing of it stays, with
    /// a cable with two Ethernet interfaces, `eth0` and `eth1`.
    pub(super) fn run(&self, script: &str) -> Result {
        const PREPARE: &str = "\
            set -e; root=$1; \
            mount -t proc proc \"$root/proc\"; mount -t tmpfs tmpfs \"$root/run\"; mount -t tmpfs tmpfs \"$root/tmp\"; \
            mkdir -p \"$root/dev/shm\"; mount -t tmpfs tmpfs \"$root/dev/shm\"; \
            ip link set lo up; ip link add eth0 type veth peer name eth1; ip link set eth0 up; ip link set eth1 up; \
            exec chroot \"$root\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive sh -eu \"/trial/$2\"";
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--net",
            "--pid",
            "--ipc",
            "--fork",
            "--kill-child",
        ]);
        command.args(["sh", "-c", PREPARE, "sh"]);
        run_program(command.arg(self.folder.path()).arg(script))
    }
}

fn make(archive: &Path, architectures: &str, with_i386: bool) -> Result {
    println!("trial: fetching {RELEASE}");
    let fresh = archive.with_extension("new.tar");
    let mut command = Command::new("mmdebstrap");
    command.args(["--quiet", "--variant=minbase"]);
    command.arg(format!("--architectures={architectures}"));
    command.arg(format!("--include={PACKAGES}"));
    if with_i386 {
        command.arg(format!("--include={PACKAGES_I386}"));
    }
    // The package lists are half of it, and not needed again.
    command.arg("--customize-hook=rm -rf \"$1\"/var/lib/apt/lists/* \"$1\"/var/cache/apt");
    output(command.arg(RELEASE).arg(&fresh))?;
    Ok(fs::rename(fresh, archive)?)
}

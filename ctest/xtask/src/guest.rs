//! `cargo xtask guest`: runs a command on another kernel, with an RDMA device that the kernel emulates.
//!
//! ```text
//!   Debian's kernel package, unpacked ─▶ kernel, modules ─▶ initramfs (busybox, modules, init.sh)
//!                                                               │
//!   QEMU, without KVM ◀─────────────────────────────────────────┘
//!     / is this machine's, read-only by 9p, with a layer in memory above it; the command runs in the same folder
//!     rxe0 is an RDMA device over the interface dummy0, 10.9.0.1
//!     time passes with the instructions that are executed
//! ```
//!
//! Nothing is installed, and root is not needed: a program that works here works in the guest, at a tenth of the speed.

mod archive;
mod kernel;
mod two;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::Result;
use crate::workspace::{Workspace, build, in_path, root};
use archive::Archive;
use kernel::Kernel;

/// What the guest runs first.
const INIT: &str = include_str!("guest/init.sh");
/// What its last line begins with; the status of the command follows.
const STATUS: &str = "GUEST-STATUS ";
/// Programs that this needs, and their Debian packages.
const NEEDS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
    ("dpkg", "dpkg"),
    ("apt-get", "apt"),
];

/// The kernel of a guest, unless another one is asked for.
const KERNEL: &str = "6.12";
/// Its memory in MiB.
const MEMORY: u32 = 1024;

/// What a guest is.
#[derive(Args)]
pub(crate) struct Guest {
    /// The version of Debian's kernel, as in the package linux-image-VERSION-amd64
    #[arg(long, value_name = "VERSION", default_value = KERNEL)]
    kernel: String,
    /// Memory of the guest in MiB
    #[arg(long, value_name = "MIB", default_value_t = MEMORY)]
    memory: u32,
    /// Processors of the guest
    #[arg(long, value_name = "N", default_value_t = 1)]
    processors: u32,
    /// End the guest after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    limit: u32,
    /// A folder whose files the command may change
    #[arg(long, value_name = "FOLDER")]
    writable: Option<PathBuf>,
}

/// Arguments of `cargo xtask guest`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    guest: Guest,
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
    /// Start two guests with a cable between them, for COMMAND0 :: COMMAND1 [default: tests between two hosts]
    #[arg(long)]
    two: bool,
    /// For the tests between two hosts: begin no further one after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "two")]
    within: Option<u32>,
    /// The command
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "two",
        value_name = "COMMAND"
    )]
    command: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    if !options.no_build {
        build()?;
    }
    if options.two {
        return two::run(&options.guest, &options.command, options.within);
    }
    let kernel = options.guest.prepare()?;
    good(options.guest.run(&kernel, &options.command, &mut |_| {})?)
}

impl Guest {
    /// A guest as it is without options, but for its limit in seconds and the folder that it may change.
    pub(crate) fn new(limit: u32, writable: Option<PathBuf>) -> Guest {
        Guest {
            kernel: KERNEL.to_owned(),
            memory: MEMORY,
            processors: 1,
            limit,
            writable,
        }
    }

    /// Gets the kernel, by a download the first time. The error is what this machine lacks.
    pub(crate) fn prepare(&self) -> Result<Kernel> {
        let missing: Vec<&str> = NEEDS
            .iter()
            .filter(|(program, _)| {
                !in_path(program) && !Path::new("/usr/sbin").join(program).exists()
            })
            .map(|(_, package)| *package)
            .collect();
        if !missing.is_empty() {
            return Err(format!("a guest needs the packages {}", missing.join(", ")).into());
        }
        let folder = Workspace::load()?.target.join("guest");
        std::fs::create_dir_all(&folder)?;
        Kernel::of(&folder, &self.kernel)
    }

    /// Runs a command in a guest, and prints what it prints, each line of which `seen` gets, too; its status, or `None` if time
    /// was up before.
    pub(crate) fn run(
        &self,
        kernel: &Kernel,
        command: &[String],
        seen: &mut dyn FnMut(&str),
    ) -> Result<Option<i32>> {
        let folder = Workspace::load()?.target.join("guest");
        let image = folder.join(format!("initramfs-{}.cpio", std::process::id()));
        std::fs::write(
            &image,
            initramfs(kernel, command, self.writable.as_deref())?,
        )?;
        let status = boot(self, kernel, &image, seen);
        std::fs::remove_file(&image)?;
        status
    }
}

/// A command that has not ended with 0 is an error.
pub(crate) fn good(status: Option<i32>) -> Result {
    match status {
        Some(0) => Ok(()),
        Some(status) => Err(format!("the command ended with status {status}").into()),
        None => Err("the guest was ended before the command: --limit".into()),
    }
}

/// The first file system: a shell, the modules in the order of their loading, and the command.
fn initramfs(kernel: &Kernel, command: &[String], writable: Option<&Path>) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in [
        "bin", "modules", "proc", "sys", "dev", "host", "layer", "root", "kept",
    ] {
        archive.folder(folder);
    }
    let busybox = find_busybox()?;
    archive.file("bin/busybox", &std::fs::read(busybox)?);
    archive.file("init", INIT.as_bytes());
    let mut order = String::new();
    for (name, content) in kernel.modules()? {
        archive.file(&format!("modules/{name}"), &content);
        order += &format!("{name}\n");
    }
    archive.file("modules/order", order.as_bytes());
    if let Some(folder) = writable {
        let folder = folder.canonicalize()?;
        archive.file("changes", folder.to_string_lossy().as_bytes());
    }
    let folder = std::env::current_dir()?;
    let folders = [folder.clone(), root(), Workspace::load()?.target];
    let lines = folders.map(|folder| format!("{}\n", folder.display()));
    archive.file("folders", lines.concat().as_bytes());
    let mut script = format!("cd {}\n", quoted(&folder.to_string_lossy()));
    for name in ["PATH", "LD_LIBRARY_PATH", "RUST_BACKTRACE", "VIPL_LOG"] {
        if let Ok(value) = std::env::var(name) {
            script += &format!("export {name}={}\n", quoted(&value));
        }
    }
    // The programs are built already.
    script += "export CTEST_NO_BUILD=1\nexec";
    for word in command {
        script += &format!(" {}", quoted(word));
    }
    archive.file("command", format!("{script}\n").as_bytes());
    Ok(archive.finish())
}

fn find_busybox() -> Result<std::path::PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .map(|folder| folder.join("busybox"))
        .find(|file| file.exists());
    found.ok_or_else(|| "busybox is not in the path".into())
}

/// A word of the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Runs the guest and prints what it prints; returns the status of the command.
fn boot(
    options: &Guest,
    kernel: &Kernel,
    image: &Path,
    seen: &mut dyn FnMut(&str),
) -> Result<Option<i32>> {
    println!("guest: booting Linux {} without KVM", kernel.release());
    let begun = Instant::now();
    let mut qemu = machine(options, kernel, image, "");
    let qemu = qemu
        .args(["-icount", CLOCK])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut guest = qemu.spawn().map_err(|error| format!("timeout: {error}"))?;
    let mut out = std::io::stdout();
    let status = follow(&mut guest, |line| {
        seen(line);
        writeln!(out, "{line}")?;
        out.flush()
    });
    println!("guest: {:.0} s", begun.elapsed().as_secs_f64());
    status
}

/// Hands each line of a guest to `each` until the guest ends; returns the status of its command, or `None` if time was up
/// before.
fn follow(
    guest: &mut Child,
    mut each: impl FnMut(&str) -> std::io::Result<()>,
) -> Result<Option<i32>> {
    let console = guest.stdout.take().expect("a pipe");
    let mut status = None;
    for line in BufReader::new(console).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        match line.strip_prefix(STATUS) {
            Some(number) => status = number.trim().parse().ok(),
            None => each(line)?,
        }
    }
    let ended = guest.wait()?;
    match (status, ended.code()) {
        (Some(status), _) => Ok(Some(status)),
        (None, Some(TIMEOUT)) => Ok(None),
        (None, _) => Err("the guest ended without a result".into()),
    }
}

/// The program that is a guest; `words` are for the kernel, and become variables of `init.sh`.
fn machine(options: &Guest, kernel: &Kernel, image: &Path, words: &str) -> Command {
    let mut qemu = Command::new("timeout");
    // An interrupt from the keyboard has to reach the guest.
    qemu.args(["--foreground", &options.limit.to_string()])
        .args(["qemu-system-x86_64", "-accel", "tcg", "-cpu", CPU])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-smp", &options.processors.to_string()])
        .args(["-m", &options.memory.to_string()])
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel.image())
        .arg("-initrd")
        .arg(image)
        .arg("-append")
        .arg(format!("{KERNEL_LINE} {words}"))
        .args(["-virtfs", FOLDER])
        .args(["-device", "virtio-rng-pci"]);
    if let Some(folder) = &options.writable {
        let folder = folder.display();
        qemu.args([
            "-virtfs",
            &format!("local,path={folder},mount_tag=writable,security_model=none"),
        ]);
    }
    qemu
}

/// The processor: without instructions that copy any number of bytes, which QEMU takes one byte at a time, and without what makes
/// each system call and each change of processes dearer. The program `compat` takes a third less.
const CPU: &str = "max,erms=off,fsrm=off,la57=off,smap=off";
/// The kernel's command line.
const KERNEL_LINE: &str =
    "console=ttyS0 quiet loglevel=3 panic=-1 no_timer_check noapic mitigations=off";
/// The status of the program `timeout` when time was up.
const TIMEOUT: i32 = 124;
/// An instruction takes two nanoseconds of the guest, however slow this machine is: limits of time there are limits of work.
const CLOCK: &str = "shift=1,sleep=on";
/// This machine's files, read-only.
const FOLDER: &str = "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_command_as_they_are() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}

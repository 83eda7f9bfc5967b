//! `cargo xtask guest`: runs a command on another kernel, with an RDMA device that the kernel emulates.
//!
//! ```text
//!   Debian's kernel package, unpacked ─▶ kernel, modules ─▶ initramfs (busybox, modules, init.sh)
//!                                                               │
//!   QEMU, without KVM ◀─────────────────────────────────────────┘
//!     / is this machine's, read-only by 9p, with a layer in memory above it; the command runs in the same folder
//!     rxe0 is an RDMA device over the interface dummy0, 10.9.0.1
//! ```
//!
//! Nothing is installed, and root is not needed: a program that works here works in the guest, at a tenth of the speed.

mod archive;
mod kernel;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::Args;

use crate::Result;
use crate::workspace::{Workspace, build, in_path};
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

/// Arguments of `cargo xtask guest`.
#[derive(Args)]
pub(crate) struct Options {
    /// The version of Debian's kernel, as in the package linux-image-VERSION-amd64
    #[arg(long, value_name = "VERSION", default_value = "6.12")]
    kernel: String,
    /// Memory of the guest in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    memory: u32,
    /// Processors of the guest
    #[arg(long, value_name = "N", default_value_t = 1)]
    processors: u32,
    /// End the guest after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1800)]
    limit: u32,
    /// The build is up to date
    #[arg(long)]
    no_build: bool,
    /// Do nothing where a program for it is missing
    #[arg(long)]
    or_skip: bool,
    /// The command [default: the conformance suite on the plug-in verbs]
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let missing: Vec<&str> = NEEDS
        .iter()
        .filter(|(program, _)| !in_path(program) && !Path::new("/usr/sbin").join(program).exists())
        .map(|(_, package)| *package)
        .collect();
    if !missing.is_empty() {
        let why = format!("a guest needs the packages {}", missing.join(", "));
        if options.or_skip {
            println!("SKIP {why}");
            return Ok(());
        }
        return Err(why.into());
    }
    if !options.no_build {
        build()?;
    }
    let command = match options.command.as_slice() {
        [] => suite()?,
        command => command.to_vec(),
    };
    let folder = Workspace::load()?.target.join("guest");
    std::fs::create_dir_all(&folder)?;
    let kernel = Kernel::of(&folder, &options.kernel)?;
    let image = folder.join(format!("initramfs-{}.cpio", std::process::id()));
    std::fs::write(&image, initramfs(&kernel, &command)?)?;
    let status = boot(options, &kernel, &image);
    std::fs::remove_file(&image)?;
    match status? {
        Some(0) => Ok(()),
        Some(status) => Err(format!("the command ended with status {status}").into()),
        None => Err(format!(
            "the guest ended without a result; it may have taken more than {} seconds",
            options.limit
        )
        .into()),
    }
}

/// The conformance suite, one run at a time.
fn suite() -> Result<Vec<String>> {
    let program = crate::workspace::built()?.join("vipl-conformance");
    let program = program.to_string_lossy().into_owned();
    let options = ["--provider", "verbs", "--jobs", "1"].map(str::to_owned);
    Ok([program].into_iter().chain(options).collect())
}

/// The first file system: a shell, the modules in the order of their loading, and the command.
fn initramfs(kernel: &Kernel, command: &[String]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in [
        "bin", "modules", "proc", "sys", "dev", "host", "layer", "root",
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
    let folder = std::env::current_dir()?;
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
fn boot(options: &Options, kernel: &Kernel, image: &Path) -> Result<Option<i32>> {
    println!("guest: booting Linux {} without KVM", kernel.release());
    let begun = Instant::now();
    let mut qemu = Command::new("timeout");
    qemu.arg(options.limit.to_string())
        .args(["qemu-system-x86_64", "-accel", "tcg", "-cpu", "max"])
        .args(["-nodefaults", "-display", "none", "-no-reboot"])
        .args(["-smp", &options.processors.to_string()])
        .args(["-m", &options.memory.to_string()])
        .args(["-serial", "stdio", "-kernel"])
        .arg(kernel.image())
        .arg("-initrd")
        .arg(image)
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 no_timer_check noapic mitigations=off",
        ])
        .args(["-virtfs", FOLDER])
        .args(["-device", "virtio-rng-pci"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut guest = qemu.spawn().map_err(|error| format!("timeout: {error}"))?;
    let console = guest.stdout.take().expect("a pipe");
    let mut status = None;
    let mut out = std::io::stdout();
    for line in BufReader::new(console).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end_matches('\r');
        match line.strip_prefix(STATUS) {
            Some(number) => status = number.trim().parse().ok(),
            None => writeln!(out, "{line}")?,
        }
        out.flush()?;
    }
    guest.wait()?;
    println!("guest: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(status)
}

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

//! Debian's kernel, unpacked into a folder of the target.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::workspace::{output, run};

/// What the guest needs: this machine's files, an RDMA device, and an interface for it. Their own needs come before
/// them. A module that the kernel has built in, or does not know, is left out.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "crc32c_generic",
    "ib_uverbs",
    "rdma_rxe",
    "dummy",
    "veth",
    "virtio_net",
    "af_packet",
];

/// An unpacked kernel.
pub(crate) struct Kernel {
    root: PathBuf,
    release: String,
}

impl Kernel {
    /// The kernel of this version in a folder; the first call downloads it, some 100 MB.
    pub(crate) fn of(folder: &Path, version: &str) -> Result<Kernel> {
        let root = folder.join(format!("kernel-{version}"));
        if !root.join("done").exists() {
            unpack(&root, version)?;
        }
        let modules = root.join("lib/modules");
        let release = first(&modules)?
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let release = release.unwrap_or_default();
        Ok(Kernel { root, release })
    }

    /// Its release, as `uname -r` says.
    pub(crate) fn release(&self) -> &str {
        &self.release
    }

    /// The file that is booted.
    pub(crate) fn image(&self) -> PathBuf {
        self.root
            .join("boot")
            .join(format!("vmlinuz-{}", self.release))
    }

    /// Names and contents of modules, in an order in which they can be loaded.
    pub(crate) fn modules(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let folder = self.root.join("lib/modules").join(&self.release);
        let list = std::fs::read_to_string(folder.join("modules.dep"))?;
        let order = in_order(&list, MODULES);
        let mut modules = Vec::new();
        for path in order {
            let file = folder.join(path);
            let name = name_of(path);
            let content = match path.ends_with(".xz") {
                true => unpacked(&file)?,
                false => std::fs::read(&file)?,
            };
            modules.push((name.to_owned(), content));
        }
        Ok(modules)
    }
}

/// The name of a module's file, without folder and ending.
fn name_of(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file)
}

/// Paths of the modules and of those that they need, from the text of `modules.dep`: a line for each, which names its
/// needs in the reverse order of their loading.
fn in_order<'a>(list: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    let lines = list.lines().filter_map(|line| line.split_once(':'));
    let known: BTreeMap<&str, (&str, &str)> = lines
        .map(|(path, needs)| (name_of(path), (path, needs)))
        .collect();
    let mut order: Vec<&str> = Vec::new();
    for (path, needs) in wanted.iter().filter_map(|name| known.get(name)) {
        for one in needs.split_whitespace().rev().chain([*path]) {
            if !order.contains(&one) {
                order.push(one);
            }
        }
    }
    order
}

fn first(folder: &Path) -> Result<PathBuf> {
    let entry = std::fs::read_dir(folder)?.next();
    Ok(entry
        .ok_or_else(|| format!("{} is empty", folder.display()))??
        .path())
}

fn unpacked(file: &Path) -> Result<Vec<u8>> {
    let output = Command::new("xz").arg("-dc").arg(file).output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("xz cannot read {}", file.display()).into()),
    }
}

/// The package of the newest kernel of a version: what linux-image-VERSION-amd64 asks for, where there is such a package, as for
/// kernels beside that of the release.
fn package(version: &str) -> Result<String> {
    let wanted = format!("linux-image-{version}-amd64");
    let depends = output(Command::new("apt-cache").args(["depends", &wanted]));
    let found = depends.ok().and_then(|depends| {
        let mut names = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "));
        let name = names.find(|name| name.starts_with("linux-image-"));
        name.map(str::to_owned)
    });
    if let Some(found) = found {
        return Ok(found);
    }
    let start = format!("linux-image-{version}.");
    let names = output(Command::new("apt-cache").args(["pkgnames", &start]))?;
    let newest = newest(names.lines(), &start);
    newest.ok_or_else(|| format!("this system's package lists have no {wanted}").into())
}

/// The package with the highest numbers of those that begin like this, without those for clouds and for real time.
fn newest<'a>(names: impl Iterator<Item = &'a str>, start: &str) -> Option<String> {
    let numbers = |name: &str| -> Option<Vec<u32>> {
        let rest = name.strip_prefix(start)?.strip_suffix("-amd64")?;
        let parts = rest.split(['.', '-', '+']);
        parts
            .map(|part| part.trim_start_matches("deb").parse().ok())
            .collect()
    };
    let newest = names.filter_map(|name| Some((numbers(name)?, name))).max();
    newest.map(|(_, name)| name.to_owned())
}

/// Downloads the package and unpacks what is needed of it.
fn unpack(root: &Path, version: &str) -> Result {
    let package = &package(version)?;
    let _ = std::fs::remove_dir_all(root);
    std::fs::create_dir_all(root)?;
    println!("guest: downloading {package}, some 100 MB, once");
    run(Command::new("timeout")
        .args(["600", "apt-get", "download", "--quiet", package])
        .current_dir(root))
    .map_err(|error| format!("{package} cannot be downloaded: {error}"))?;
    let file = first(root)?;
    println!("guest: unpacking it");
    let unpack =
        "dpkg --fsys-tarfile \"$0\" | tar x --wildcards './boot/vmlinuz*' './*lib/modules/*'";
    run(Command::new("sh")
        .args(["-c", unpack])
        .arg(&file)
        .current_dir(root))?;
    std::fs::remove_file(file)?;
    // Some releases have their modules in usr/lib.
    if !root.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    }
    let release = first(&root.join("lib/modules"))?;
    let release = release.file_name().unwrap_or_default();
    let depmod = match crate::workspace::in_path("depmod") {
        true => "depmod",
        false => "/usr/sbin/depmod",
    };
    run(Command::new(depmod).arg("-b").arg(root).arg(release))?;
    std::fs::write(root.join("done"), package)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_for_every_machine() {
        let names = [
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-56-amd64",
            "linux-image-6.1.0-57-cloud-amd64",
            "linux-image-6.1.0-57-rt-amd64",
            "linux-image-6.1.0-58-amd64-dbg",
            "linux-image-6.1.0-59-amd64-unsigned",
        ];
        let found = newest(names.into_iter(), "linux-image-6.1.");
        assert_eq!(found.as_deref(), Some("linux-image-6.1.0-56-amd64"));
        assert_eq!(newest(names.into_iter(), "linux-image-5.10."), None);
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let list = "kernel/a/rdma_rxe.ko.xz: kernel/a/ib_uverbs.ko.xz kernel/a/ib_core.ko.xz\n\
                    kernel/a/ib_uverbs.ko.xz: kernel/a/ib_core.ko.xz\nkernel/a/ib_core.ko.xz:\nkernel/b/dummy.ko:\n";
        let order = in_order(list, &["rdma_rxe", "dummy", "built_in", "ib_uverbs"]);
        let names: Vec<&str> = order.iter().map(|path| name_of(path)).collect();
        assert_eq!(names, ["ib_core", "ib_uverbs", "rdma_rxe", "dummy"]);
    }
}

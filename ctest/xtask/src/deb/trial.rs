//! The packages in a fresh Debian: installed, used, upgraded, removed, purged; nothing stays.

use std::fs;
use std::path::{Path, PathBuf};

use super::chroot::Chroot;
use super::{Build, files_named};
use crate::Result;
use crate::workspace::{in_path, root};

/// What runs there.
const SCRIPT: &str = include_str!("trial.sh");
/// The rights that the agent gets from its unit.
const SERVICE: &str = "packaging/systemd/vipkad.service.in";
/// Makes a version that replaces the first one.
const NEXT: &str = "+next";

/// Runs the trial, or says why it cannot.
pub(super) fn run(build: &Build, packages: &[PathBuf], beside: Option<&Path>) -> Result {
    let obstacle = if !is_root()? {
        Some("it takes root")
    } else if !in_path("mmdebstrap") {
        Some("mmdebstrap is not installed")
    } else if !in_path("ip") {
        Some("iproute2 is not installed")
    } else {
        None
    };
    if let Some(obstacle) = obstacle {
        println!("SKIP trial of the packages: {obstacle}");
        return Ok(());
    }
    let next = build.packages(Some(NEXT))?;
    let parent = build.folder.parent().ok_or("a folder without a parent")?;
    let chroot = Chroot::new(parent, &build.architecture, beside.is_some())?;
    let mut folders = vec![("first", packages.to_vec()), ("next", next)];
    if let Some(beside) = beside {
        // The library, its plug-ins and what programs are linked with.
        let chosen = |name: &str| {
            let wanted = ["libvipl1_", "libvipl-dev_", "vipl-plugins_"];
            wanted.iter().any(|start| name.starts_with(start)) && name.ends_with(".deb")
        };
        folders.push(("beside", files_named(beside, chosen)?));
    }
    for (name, files) in folders {
        let folder = chroot.trial(name);
        fs::create_dir(&folder)?;
        for file in files {
            fs::copy(
                &file,
                folder.join(file.file_name().ok_or("a package without a name")?),
            )?;
        }
    }
    fs::remove_dir_all(build.folder.join(NEXT))?;
    fs::write(chroot.trial("trial.sh"), SCRIPT)?;
    fs::write(chroot.trial("capabilities"), capabilities()?)?;
    chroot.run("trial.sh")
}

fn is_root() -> Result<bool> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

/// `CapabilityBoundingSet=CAP_A CAP_B` of the unit, as setpriv takes it: `-all,+a,+b`.
fn capabilities() -> Result<String> {
    let unit = fs::read_to_string(root().join(Path::new(SERVICE)))?;
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names = line
        .ok_or("the unit bounds no capabilities")?
        .split_whitespace();
    let added = names.map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase()));
    Ok(format!("-all{}\n", added.collect::<String>()))
}

//! A short run of `cargo xtask ethernet` with each card: a soak that everybody runs.

use std::process::{Command, Stdio};

use vipl_ctest::{library_dir, skip};
use vipl_netns::Namespaces;

/// It ends well, with every byte right, and the cables were bad.
fn soak(device: &str) {
    if let Err(why) = Namespaces::bridge(3) {
        return skip(&format!("network namespaces: {why}"));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_vipl-stress"))
        .args(["ethernet", "--seconds", "10", "--seed", "7"])
        .args(["--device", device, "--levels", "2,4", "--library"])
        .arg(library_dir().join("libvipl.so"))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("vipl-stress");
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}", output.status);
    let last = said.lines().last().unwrap_or_default();
    assert!(last.starts_with("ok: ") && last.contains("wrong bytes 0"));
    assert!(!last.contains("the cables lost 0,"));
}

#[test]
fn gnic2() {
    soak("gnic2:eth0");
}

#[test]
fn clan() {
    soak("clan:eth0");
}

/// What `cargo xtask deep` runs.
mod deep {
    use super::*;

    #[test]
    #[ignore = "cargo xtask deep"]
    fn tulip() {
        soak("tulip:eth0");
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn ip() {
        soak("ip:eth0");
    }
}

//! `vipinfo` for a user who may not have Ethernet.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use vipl_ctest::library_dir;
use vipl_netns::Namespaces;

/// The right to raw sockets (`CAP_NET_RAW`).
const NET_RAW: libc::c_ulong = 13;

/// Two interfaces that cannot be opened for the same reason: one line of the log says what to do about it.
#[test]
fn one_line_says_what_ethernet_needs() {
    let hosts = match Namespaces::pair() {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    for arguments in [
        "link add eth1 type veth peer name eth2",
        "link set eth1 up",
        "link set eth2 up",
    ] {
        let mut ip = hosts.command(0, "ip");
        ip.args(arguments.split(' '));
        assert!(ip.status().expect("ip").success(), "{arguments}");
    }
    let mut command = hosts.command(0, env!("CARGO_BIN_EXE_vipinfo"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    command
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .env("VIPL_CONFIG", "/dev/null")
        .env("VIPL_AGENT", "off")
        .stdin(Stdio::null());
    // SAFETY: a system call that takes a right away from what is executed next, and nothing else.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_CAPBSET_DROP, NET_RAW, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            },
        )
    };
    let output = command.output().expect("vipinfo");
    let (said, told) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let context = format!("{}\n{said}\n{told}", output.status);
    assert!(output.status.success(), "{context}");
    for device in ["via_eth0\n", "via_eth1\n", "via_eth2\n", "via_lo\n"] {
        assert!(said.contains(device), "{context}");
    }
    // The one with an IP address is reached over UDP.
    assert_eq!(said.matches("cannot be opened").count(), 2, "{context}");
    assert!(said.contains("ip:eth0"), "{context}");
    assert_eq!(told.lines().count(), 1, "{context}");
    assert!(
        told.contains("`vipkad --system`, started by root"),
        "{context}"
    );
}

/// A process that wants an agent of its own and has no place for its socket learns that at once.
#[test]
fn an_agent_of_ones_own_needs_a_folder() {
    let long = format!("/tmp/{}", "x".repeat(100));
    for (folder, why) in [("/nowhere", "No such file"), (&long, "File name too long")] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vipinfo"));
        let output = command
            .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
            .env("VIPL_CONFIG", "/dev/null")
            .env("VIPL_AGENT", "off")
            .env("TMPDIR", folder)
            .args(["-d", "loopback:"])
            .output()
            .expect("vipinfo");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{told}");
        let expected = format!("VIPL_AGENT=off: cannot create {folder}/vipl-");
        assert!(told.contains(&expected) && told.contains(why), "{told}");
    }
}

/// A set-user-ID program starts no agent: it would serve the program's real user with root's rights.
#[test]
fn a_set_user_id_program_starts_no_agent() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !nix_root() {
        return println!("SKIP only root can make a set-user-ID program");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let to_all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), to_all).expect("chmod");
    let program = folder.path().join("vipinfo");
    std::fs::copy(env!("CARGO_BIN_EXE_vipinfo"), &program).expect("a copy");
    let raised = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&program, raised).expect("chmod");
    let mut command = std::process::Command::new(&program);
    command
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .uid(65_532)
        .gid(65_532);
    let output = command.output().expect("vipinfo");
    let said = String::from_utf8_lossy(&output.stderr);
    if std::path::Path::new("/run/vipl/kagent.sock").exists() {
        return println!("SKIP this machine has a system agent");
    }
    assert!(said.contains("starts no Kernel Agent"), "{said}");
}

fn nix_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}

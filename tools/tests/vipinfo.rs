//! `vipinfo` for a user who may not have Ethernet.

use std::os::unix::process::CommandExt;
use std::process::Stdio;

use vipl_ctest::{Run, library_dir, with_library};
use vipl_netns::{Apart, INTERFACE, Namespaces};

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
    with_library(&mut command);
    command.env("VIPL_AGENT", "off");
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
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let context = format!("{}\n{stdout}\n{stderr}", output.status);
    assert!(output.status.success(), "{context}");
    for device in ["via_eth0\n", "via_eth1\n", "via_eth2\n", "via_lo\n"] {
        assert!(stdout.contains(device), "{context}");
    }
    // The one with an IP address is reached over UDP.
    assert_eq!(stdout.matches("cannot be opened").count(), 2, "{context}");
    assert!(stdout.contains("ip:eth0"), "{context}");
    // On a busy machine the agent may take a second to start.
    let waits = |line: &&str| line.starts_with("vipinfo: waiting for ");
    let lines = stderr.lines().filter(|line| !waits(line)).count();
    assert_eq!(lines, 1, "{context}");
    assert!(
        stderr.contains("`vipkad --system`, started by root"),
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
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{stderr}");
        let expected = format!("VIPL_AGENT=off: cannot create {folder}/vipl-");
        assert!(
            stderr.contains(&expected) && stderr.contains(why),
            "{stderr}"
        );
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
    let stdout = String::from_utf8_lossy(&output.stderr);
    if std::path::Path::new("/run/vipl/kagent.sock").exists() {
        return println!("SKIP this machine has a system agent");
    }
    assert!(stdout.contains("starts no Kernel Agent"), "{stdout}");
}

fn nix_root() -> bool {
    // SAFETY: always succeeds.
    unsafe { libc::geteuid() == 0 }
}

/// `vipinfo` of one host with an agent of the other, as where two containers share `/run/vipl`.
#[test]
fn an_agent_of_another_network_namespace_is_refused() {
    let Ok(hosts) = Namespaces::pair().map_err(|why| println!("SKIP network namespaces: {why}"))
    else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("agent");
    let mut agent = hosts
        .command(1, library_dir().join("vipkad").to_str().expect("a path"))
        .args(["--foreground", "--idle-ms", "0", "--socket"])
        .arg(&socket)
        .env("VIPL_LOG", "off")
        .stdin(Stdio::null())
        .spawn()
        .expect("vipkad");
    let info = |host: usize| {
        let mut command = hosts.command(host, env!("CARGO_BIN_EXE_vipinfo"));
        command
            .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
            .env("VIPL_CONFIG", "/dev/null")
            .env("VIPL_AGENT", &socket)
            .env("VIPL_LOG", "error")
            .args(["-v", "-d", &format!("tulip:{INTERFACE}")]);
        let output = command.output().expect("ip netns exec");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    while !socket.exists() {
        assert!(agent.try_wait().expect("vipkad").is_none(), "it has ended");
        std::thread::yield_now();
    }
    let (right, wrong) = (info(1), info(0));
    agent.kill().expect("vipkad");
    agent.wait().expect("vipkad");
    assert!(right.0, "{}", right.1);
    assert!(
        right.1.contains("at the Kernel Agent") && right.1.contains("pending requests"),
        "{}",
        right.1
    );
    let expected = format!("{INTERFACE}: the running Kernel Agent is in another network");
    assert!(!wrong.0 && wrong.1.contains(&expected), "{}", wrong.1);
}

/// `vipinfo` names the plug-in that a user gets: for a plain user, the names of raw Ethernet are those of UDP.
#[test]
fn vipinfo_shows_what_a_plain_user_gets() {
    let Ok(hosts) = Namespaces::pair().map_err(|why| println!("SKIP network namespaces: {why}"))
    else {
        return;
    };
    let vipinfo = |apart: &Apart, arguments: &[&str]| {
        let run = Run::strict(env!("CARGO_BIN_EXE_vipinfo"))
            .env("VIPL_LIBRARY", apart.library().join("libvipl.so.1"));
        let run = arguments
            .iter()
            .fold(run, |run, argument| run.arg(argument));
        let finished = apart.on_first_host(run).finish();
        assert!(finished.status.success(), "{}", finished.report("vipinfo"));
        finished.stdout
    };
    let served = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        word.unwrap_or_else(|| panic!("{name}: {text}")).to_owned()
    };
    let (via, address) = (format!("via_{INTERFACE}"), hosts.ipv4(0).to_string());
    for (plain, ethernet, best) in [(false, "gnic2:eth0", "loopback:"), (true, "ip:eth0", "ip:")] {
        let apart = match plain {
            false => Apart::new(&hosts),
            true => Apart::of_user(&hosts, 65_530),
        };
        let map = vipinfo(&apart, &["-m", &via, "VINIC"]);
        assert_eq!(served(&map, &via), ethernet, "{map}");
        assert_eq!(served(&map, "VINIC"), best, "{map}");
        let list = vipinfo(&apart, &[]);
        let of_device = list.split_once(&format!("{via}\n")).expect(&list).1;
        assert_eq!(
            served(of_device.trim_start(), "plug-in"),
            ethernet,
            "{list}"
        );
        assert_eq!(of_device.contains(&address), best == "ip:", "{list}");
    }
}

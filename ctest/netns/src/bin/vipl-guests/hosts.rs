//! Both guests, with an agent on each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use vipl_ctest::{Run, library_dir, work_dir};

use crate::order::{self, kind};

/// Where the agents of both guests listen.
const AGENT: &str = "/run/agent/socket";
/// Where their log is.
const AGENT_LOG: &str = "/run/agent/log";

/// A command of the shell in this guest: its status, and what it has printed.
pub(crate) fn shell(command: &str) -> (i32, String) {
    let output = Command::new("sh")
        .args(["-c", &format!("exec 2>&1; {command}")])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            (output.status.code().unwrap_or(255), text)
        }
        Err(error) => (255, error.to_string()),
    }
}

/// The same in the guest of a side.
pub(crate) fn on(side: usize, command: &str) -> (i32, String) {
    if side == 0 {
        return shell(command);
    }
    let asked = order::connect().and_then(|stream| {
        order::put(&stream, &[kind::SHELL.to_owned(), command.to_owned()])?;
        order::get(&stream)
    });
    let answer = asked.expect("guest 1 answers");
    (answer[0].parse().unwrap_or(255), answer[1].clone())
}

/// The same, which has to succeed.
pub(crate) fn must(side: usize, command: &str) -> String {
    let (status, output) = on(side, command);
    assert!(status == 0, "guest {side}: `{command}`: {status}\n{output}");
    output
}

/// Unplugs the first cable of this guest from outside, or plugs it in.
pub(crate) fn plug(is_in: bool) {
    println!("\nGUEST-CABLE {}", if is_in { "on" } else { "off" });
}

/// A program of the build.
pub(crate) fn tool(name: &str) -> PathBuf {
    let work = work_dir();
    work.parent().unwrap_or(Path::new("/")).join(name)
}

/// What a command of the shell needs to run tools.
pub(crate) fn settings() -> String {
    let library = library_dir().display();
    format!("VIPL_CONFIG=/dev/null VIPL_AGENT={AGENT} LD_LIBRARY_PATH={library}")
}

/// Puts another agent in the place of the one of a side; its secret is this text.
pub(crate) fn start_agent(side: usize, secret: Option<&str>) {
    kill_agent(side);
    let option = match secret {
        None => String::new(),
        Some(secret) => {
            let write = "umask 077; cat >/run/agent/secret";
            must(side, &format!("printf '%s' '{secret}' | ({write})"));
            "--secret-file /run/agent/secret".to_owned()
        }
    };
    let program = library_dir().join("vipkad");
    let program = program.display();
    must(
        side,
        &format!(
            "{program} --idle-ms 0 {option} --socket {AGENT} </dev/null >>{AGENT_LOG} 2>&1 & echo $! >/run/agent/pid
             n=0; until grep -q ' 00010000 .*{AGENT}$' /proc/net/unix
             do n=$((n + 1)); [ $n -lt 600 ] || exit 1; sleep 0.1; done"
        ),
    );
}

/// Kills the agent of a side.
pub(crate) fn kill_agent(side: usize) {
    must(
        side,
        "mkdir -p /run/agent; chmod 700 /run/agent
         [ ! -f /run/agent/pid ] || kill -9 $(cat /run/agent/pid); rm -f /run/agent/pid",
    );
}

/// A C program with side 0 in this guest and side 1 in guest 1.
pub(crate) fn program(name: &str, device: &str) -> Run {
    let own = std::env::current_exe().expect("the path of this program");
    let level = std::env::var("GUESTS_LOG").unwrap_or_else(|_| "warn".to_owned());
    Run::strict(work_dir().join("bin").join(name))
        .env("VIPL_LOG", level)
        .env("VIPL_DEVICE_MAP", format!("*={device}"))
        .env("VIPL_AGENT", AGENT)
        .env("CTEST_SECOND", own)
        .seconds(900)
}

/// Starts a server of `vip_pingpong` in guest 1, the leader of a group of processes.
pub(crate) fn start_server(options: &str) {
    let (program, settings) = (tool("vip_pingpong"), settings());
    must(
        1,
        &format!(
            "{settings} setsid {} {options} </dev/null >/run/server.log 2>&1 & echo $! >/run/server",
            program.display()
        ),
    );
}

/// The client here, with its status and what it prints.
pub(crate) fn client(options: &str) -> (i32, String) {
    let (program, settings) = (tool("vip_pingpong"), settings());
    shell(&format!(
        "{settings} timeout 300 {} {options}",
        program.display()
    ))
}

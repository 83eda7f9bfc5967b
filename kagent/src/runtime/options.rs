//! The command line of `vipkad`.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use clap::Parser;
use clap::builder::{PathBufValueParser, TypedValueParser};
use vipl_cli::Generate;

use crate::runtime::networks::Networks;

const ABOUT: &str = "\
Lets the processes of a host find and connect to each other: the Kernel Agent of VIPL

It notifies them when a peer dies. The library starts one for its user when it is
needed; that one exits by itself when it is not. The one for all users is started
with the system, by root, and stays until SIGTERM. It does not go to the background.";

const DETAILS: &str = "\
A listening socket from a service manager (LISTEN_FDS, LISTEN_PID; SOCK_SEQPACKET as
descriptor 3) is used instead of any other; with --idle-ms the agent exits when it is
idle, and the manager starts it again.

Environment:
  VIPL_LOG        error, warn, info, debug or off, also as SUBSYSTEM=LEVEL [warn]
  VIPL_LOG_FILE   append log lines to this file instead of standard error

Exit status: 0: it was told to leave, was idle, or another agent already serves the
address; 1: it cannot serve; 2: the command line is wrong";

/// Time without processes after which an agent of one user exits.
const IDLE_MS: u64 = 3000;

/// The command line options.
#[derive(Clone, Debug, Parser, PartialEq, Eq)]
#[command(name = "vipkad", version, about = ABOUT, after_help = DETAILS, args_override_self = true)]
pub struct Options {
    /// Listen at PATH instead of the user's place, which is
    /// /run/user/UID/vipl, $XDG_RUNTIME_DIR/vipl or /tmp/vipl-UID
    #[arg(
        long,
        value_name = "PATH",
        verbatim_doc_comment,
        value_parser = PathBufValueParser::new().try_map(std::path::absolute)
    )]
    socket: Option<PathBuf>,

    /// Serve all users, each apart from the others
    /// (without --socket at /run/vipl/kagent.sock)
    #[arg(long, verbatim_doc_comment)]
    pub system: bool,

    /// With --system: members of this group may use raw Ethernet;
    /// otherwise only root and the agent's own user may
    #[arg(
        long,
        value_name = "NAME",
        default_value = "vipl",
        verbatim_doc_comment
    )]
    pub link_group: String,

    /// UDP port for agents of other hosts, at each address that is used
    /// [34998, or any if it is taken]
    #[arg(
        long,
        value_name = "PORT",
        env = "VIPL_UDP_PORT",
        value_parser = clap::value_parser!(u16).range(1..),
        verbatim_doc_comment
    )]
    pub udp_port: Option<u16>,

    /// Over UDP, speak only with agents that have the secret in this
    /// file, which only its owner may read (16 to 4096 bytes)
    #[arg(
        long,
        value_name = "PATH",
        env = "VIPL_SECRET_FILE",
        verbatim_doc_comment
    )]
    pub secret_file: Option<PathBuf>,

    /// Over UDP without a secret, let hosts of these networks call: subnets,
    /// any, or 10.0.0.0/8,fd00::/8 beside the host's own subnets [subnets]
    #[arg(
        long,
        value_name = "NETWORKS",
        env = "VIPL_UDP_FROM",
        default_value = "subnets",
        hide_default_value = true,
        hide_env_values = true,
        verbatim_doc_comment
    )]
    pub(crate) udp_from: Networks,

    /// Exit after N milliseconds without a process; 0 is never
    /// [3000; with --system 0: it stays until it is told to leave]
    #[arg(long, value_name = "N", verbatim_doc_comment)]
    idle_ms: Option<u64>,

    /// Accepted and without effect: the agent never goes to the background
    #[arg(long)]
    foreground: bool,

    /// Be a helper of an agent, which alone uses this option.
    #[arg(long = HELPER, hide = true)]
    pub descriptor_helper: bool,

    /// The manual page, or completions
    #[command(flatten)]
    pub generate: Generate,
}

/// The option that starts `vipkad` as a helper.
pub(crate) const HELPER: &str = "descriptor-helper";

impl Options {
    /// Where to listen; `None`: the default of the user.
    pub fn socket(&self) -> Option<&Path> {
        let system = self
            .system
            .then_some(Path::new(kagent_proto::SYSTEM_SOCKET));
        self.socket.as_deref().or(system)
    }

    /// Milliseconds without a process before the agent exits; 0 is never.
    pub fn idle_ms(&self) -> u64 {
        self.idle_ms
            .unwrap_or(if self.system { 0 } else { IDLE_MS })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, clap::Error> {
        Options::try_parse_from(std::iter::once("vipkad").chain(line.split_whitespace()))
    }

    #[test]
    fn command_lines() {
        let system = kagent_proto::SYSTEM_SOCKET;
        for (line, socket, idle_ms) in [
            ("", None, 3000),
            ("--foreground --idle-ms 0", None, 0),
            ("--socket=/a=b --idle-ms=7", Some("/a=b"), 7),
            ("--socket /a --socket /b", Some("/b"), 3000),
            ("--system", Some(system), 0),
            ("--system --socket /x", Some("/x"), 0),
            ("--idle-ms 7 --system --socket /x", Some("/x"), 7),
        ] {
            let options = parse(line).unwrap();
            assert_eq!(options.socket(), socket.map(Path::new), "{line}");
            assert_eq!(options.idle_ms(), idle_ms, "{line}");
            assert_eq!(options.system, line.contains("--system"), "{line}");
            assert_eq!(options.link_group, "vipl", "{line}");
        }
        let here = std::env::current_dir().unwrap().join("agent");
        assert_eq!(parse("--socket agent").unwrap().socket(), Some(&*here));
        assert!(parse("--descriptor-helper").unwrap().descriptor_helper);
        for wrong in [
            "--socket",
            "--socket=",
            "--idle-ms",
            "--idle-ms=-1",
            "--idle-ms x",
            "--link-group",
            "--system=1",
            "x",
            "--verbose",
        ] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn what_is_for_the_agent_alone_is_not_shown() {
        let help = parse("--help").unwrap_err().to_string();
        assert!(
            help.contains("--idle-ms <N>") && !help.contains(HELPER),
            "{help}"
        );
    }
}

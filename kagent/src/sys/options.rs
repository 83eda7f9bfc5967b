//! The command line of `vipkad`.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::path::PathBuf;

use super::error::Error;

/// What `--help` prints.
pub const USAGE: &str = "\
vipkad - the Kernel Agent of VIPL

Usage: vipkad [OPTIONS]

The agent lets processes of one host that use VIPL find and connect to each other,
and tells them when a partner dies. The library starts one for its user when it is
needed; that one leaves by itself when it is not. The one for all users is started
with the system, by root, and stays until SIGTERM. It does not go to the background.

Options:
  --socket PATH   listen at PATH instead of the user's place, which is
                  /run/user/UID/vipl or /tmp/vipl-UID
  --system        serve all users, each apart from the others
                  (without --socket at /run/vipl/kagent.sock)
  --link-group NAME
                  with --system: members of this group may use raw Ethernet [vipl];
                  else only root and the agent's own user may
  --idle-ms N     leave after N milliseconds without a process; 0 is never
                  [3000; with --system 0: it stays until it is told to leave]
  --foreground    accepted and without effect: the agent never goes to the background
  --help          print this and exit
  --version       print the version and exit

A listening socket from a service manager (LISTEN_FDS, LISTEN_PID; SOCK_SEQPACKET as
descriptor 3) is used instead of any other; with --idle-ms the agent leaves when it is
idle, and the manager starts it again.

Environment:
  VIPL_LOG        error, warn, info, debug or off, also as SUBSYSTEM=LEVEL [warn]
  VIPL_LOG_FILE   append log lines to this file instead of standard error

Exit status is 0 also when another agent already serves the address.
";

/// How long an agent without processes stays.
const IDLE_MS: u64 = 3000;

/// Members of this group may use raw Ethernet by way of a system-wide agent.
const LINK_GROUP: &str = "vipl";

/// What the agent was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where to listen; `None` is the place of the user.
    pub socket: Option<PathBuf>,
    /// Serve all users.
    pub system: bool,
    /// Whose members may have data sockets of a system-wide agent.
    pub link_group: String,
    /// Milliseconds without a process before the agent leaves; 0 is never.
    pub idle_ms: u64,
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve.
    Serve(Options),
    /// Print [`USAGE`].
    Help,
    /// Print the version.
    Version,
    /// Be a helper of an agent, which alone knows this option.
    Helper,
}

impl Command {
    /// Reads the arguments after the program's name.
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Self, Error> {
        let mut options = Options {
            socket: None,
            system: false,
            link_group: LINK_GROUP.to_owned(),
            idle_ms: IDLE_MS,
        };
        let mut idle_ms = None;
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let text = arg.to_string_lossy().into_owned();
            let (name, inline) = match text.split_once('=') {
                Some((name, value)) => (name, Some(OsString::from(value))),
                None => (text.as_str(), None),
            };
            let takes_value = matches!(name, "--socket" | "--idle-ms" | "--link-group");
            if inline.is_some() && !takes_value {
                return Err(Error::Usage(format!("unknown option {text}")));
            }
            let mut value = || {
                inline
                    .clone()
                    .or_else(|| args.next())
                    .ok_or_else(|| Error::Usage(format!("{name} needs a value")))
            };
            match name {
                "--help" | "-h" => return Ok(Self::Help),
                "--version" | "-V" => return Ok(Self::Version),
                super::helper::ARGUMENT => return Ok(Self::Helper),
                "--foreground" => {}
                "--system" => options.system = true,
                "--socket" => options.socket = Some(value()?.into()),
                "--link-group" => {
                    let value = value()?;
                    options.link_group = value.to_string_lossy().into_owned();
                }
                "--idle-ms" => {
                    let value = value()?;
                    let number = value.to_str().and_then(|number| number.parse().ok());
                    idle_ms = Some(number.ok_or_else(|| {
                        Error::Usage(format!("--idle-ms: {} is no number", value.display()))
                    })?);
                }
                _ => return Err(Error::Usage(format!("unknown option {text}"))),
            }
        }
        options.idle_ms = idle_ms.unwrap_or(if options.system { 0 } else { IDLE_MS });
        if options.system && options.socket.is_none() {
            options.socket = Some(kagent_proto::SYSTEM_SOCKET.into());
        }
        Ok(Self::Serve(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        Command::parse(line.split_whitespace().map(OsString::from)).map_err(|e| e.to_string())
    }

    fn serve(socket: Option<&str>, system: bool, idle_ms: u64) -> Result<Command, String> {
        Ok(Command::Serve(Options {
            socket: socket.map(PathBuf::from),
            system,
            link_group: LINK_GROUP.to_owned(),
            idle_ms,
        }))
    }

    #[test]
    fn command_lines() {
        assert_eq!(parse(""), serve(None, false, 3000));
        assert_eq!(parse("--foreground --idle-ms 0"), serve(None, false, 0));
        assert_eq!(
            parse("--socket=/a=b --idle-ms=7"),
            serve(Some("/a=b"), false, 7)
        );
        assert_eq!(
            parse("--system"),
            serve(Some(kagent_proto::SYSTEM_SOCKET), true, 0)
        );
        assert_eq!(parse("--system --socket /x"), serve(Some("/x"), true, 0));
        let idle = "--idle-ms 7 --system --socket /x";
        assert_eq!(parse(idle), serve(Some("/x"), true, 7));
        assert_eq!(parse("--idle-ms x --help").ok(), None);
        assert_eq!(parse("--help"), Ok(Command::Help));
        assert_eq!(parse("-V"), Ok(Command::Version));
        for wrong in [
            "--socket",
            "--idle-ms",
            "--link-group",
            "--idle-ms=-1",
            "--system=1",
            "x",
            "--verbose",
        ] {
            assert!(
                parse(wrong).unwrap_err().ends_with("try vipkad --help"),
                "{wrong}"
            );
        }
    }
}

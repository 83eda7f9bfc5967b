//! A server: processes that serve a client each, and the one that starts them.
//!
//! ```text
//!   server ─┬─ waits for a client            (replaced when one has come)
//!           ├─ serves a client               (GUESTS at most)
//!           └─ serves another client
//! ```
//!
//! Whatever a client does ends with the process that serves it: memory, a silence, a crash. The server ends when
//! a client has finished its tests, and no other one is served any more.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};

use clap::Args;

use crate::request::{MEMORY, Request};
use crate::session::{Local, Session};
use crate::{Error, Result, report, size, sys};

/// Clients that are served at a time.
const GUESTS: usize = 4;

/// Terms on which a server serves a client.
#[derive(Args, Clone, Debug)]
pub struct Terms {
    /// Memory that a server gives a client for a test, as 64m or 2g [default: 256m]
    #[arg(long, value_name = "BYTES")]
    client_memory: Option<String>,

    /// Seconds after which a server ends a client's session
    #[arg(long, value_name = "N", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    client_seconds: u32,

    /// A process that serves one client
    #[arg(long, hide = true)]
    serve_one: bool,
}

/// The option that makes such a process.
const SERVE_ONE: &str = "--serve-one";

/// Such a process writes this when a client has connected.
const CAME: [u8; 1] = *b"c";

/// What the processes report.
enum Event {
    /// Process number so many has a client.
    Came(usize),
    /// It has ended.
    Ended(usize),
}

struct Guest {
    number: usize,
    child: Child,
    has_client: bool,
}

impl Terms {
    /// Bytes for each test of a client.
    ///
    /// # Errors
    /// The option is no size.
    pub fn memory(&self) -> Result<u64> {
        let asked = self.client_memory.as_deref().map(size::parse).transpose()?;
        Ok(asked.map_or(MEMORY, |bytes| bytes as u64))
    }

    /// Serves: one client in the process that was started for it, else all that come.
    ///
    /// # Errors
    /// No client can be waited for, or the one client was not served to its end.
    pub fn serve<L: Local>(
        &self,
        listen: impl FnOnce(&dyn Fn()) -> Result<Session<L>>,
        serve: impl FnOnce(&mut Session<L>) -> Result<Served>,
    ) -> Result<()> {
        if !self.serve_one {
            return supervise();
        }
        sys::die_with_parent();
        let mut session = listen(&|| {
            sys::end_after(self.client_seconds);
            let mut stdout = std::io::stdout();
            let _ = stdout.write_all(&CAME).and_then(|()| stdout.flush());
        })?;
        match serve(&mut session)? {
            Served::Tests => Ok(()),
            Served::Nothing => Err(Error::Peer("asked for no test".to_owned())),
        }
    }
}

/// What a client has had when it left in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Tests.
    Tests,
    /// Nothing.
    Nothing,
}

/// Serves one request after the other; refuses whatever is no test, with the reason.
///
/// # Errors
/// The connection broke, or the client asked for what it does not get.
pub fn each<L: Local>(
    session: &mut Session<L>,
    mut serve: impl FnMut(&mut Session<L>, Request) -> Result<()>,
) -> Result<Served> {
    let mut served = Served::Nothing;
    loop {
        let done = match session.next_request() {
            Ok(None) => return Ok(served),
            Ok(Some(request)) => serve(session, request),
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            return session.refuse(error);
        }
        served = Served::Tests;
    }
}

fn supervise() -> Result<()> {
    let (sender, events) = mpsc::channel();
    let mut guests: Vec<Guest> = Vec::new();
    let (mut number, mut is_done) = (0, false);
    loop {
        let waits = guests.iter().any(|guest| !guest.has_client);
        if !is_done && !waits && guests.len() < GUESTS {
            number += 1;
            guests.push(start(number, &sender)?);
        }
        if guests.is_empty() {
            return Ok(());
        }
        let event = events.recv().map_err(|_| Error::Silence("serving"))?;
        match event {
            Event::Came(number) => {
                let came = guests.iter_mut().find(|guest| guest.number == number);
                if let Some(guest) = came {
                    guest.has_client = true;
                }
            }
            Event::Ended(number) => {
                let Some(at) = guests.iter().position(|guest| guest.number == number) else {
                    continue;
                };
                let mut guest = guests.swap_remove(at);
                let status = guest
                    .child
                    .wait()
                    .map_err(|error| Error::io("wait", error))?;
                if !guest.has_client && !is_done {
                    // It has said why no client can come.
                    end(&mut guests);
                    let why = "no process can wait for clients; see above";
                    return Err(Error::Usage(why.to_owned()));
                }
                if status.success() {
                    is_done = true;
                    guests.retain_mut(|guest| guest.has_client || !kill(guest));
                } else if guest.has_client {
                    if sys::is_alarm(status) {
                        report::note("a client has had its time (--client-seconds)");
                    }
                    report::note("a client has been dismissed; waiting for the next one");
                }
            }
        }
    }
}

fn end(guests: &mut Vec<Guest>) {
    guests.retain_mut(|guest| !kill(guest));
}

/// Ends a process; always true.
fn kill(guest: &mut Guest) -> bool {
    let _ = guest.child.kill();
    let _ = guest.child.wait();
    true
}

/// Starts this program for one client, and a thread that reports its events.
fn start(number: usize, sender: &Sender<Event>) -> Result<Guest> {
    let failed = |error| Error::io("starting a process for a client", error);
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg(SERVE_ONE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut said = child.stdout.take();
    let sender = sender.clone();
    let listen = move || {
        let mut byte = [0];
        if let Some(said) = &mut said
            && said.read_exact(&mut byte).is_ok()
            && byte == CAME
        {
            let _ = sender.send(Event::Came(number));
            let _ = said.read_to_end(&mut Vec::new());
        }
        let _ = sender.send(Event::Ended(number));
    };
    std::thread::Builder::new().spawn(listen).map_err(failed)?;
    Ok(Guest {
        number,
        child,
        has_client: false,
    })
}

//! A party: one process of a run, with a thread for each end of a link that it has.
//!
//! It tells its supervisor on the standard output (`up`, `lost`, `counts`, `beat`, `wrong`) and does what
//! comes on its standard input: `beat` tells how many messages each end has received, `end` ends all
//! connections and the process.

use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Args;

use crate::dice::Dice;
use crate::link::{Link, Mode, Spec};
use crate::node::Node;
use crate::report::{COUNTS, count, fault, say, say_counts};
use crate::stop;
use crate::talk::{Ending, Spice, Talk};

/// What a party is told on its command line.
#[derive(Args)]
pub(crate) struct Options {
    #[arg(long)]
    library: PathBuf,
    #[arg(long)]
    device: String,
    #[arg(long)]
    run: String,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    rdma: bool,
    #[arg(long, default_value_t = 0)]
    parting: u64,
    /// id:client|server:level:mode, and for a server on another host :ADDRESS
    #[arg(required = true)]
    ends: Vec<String>,
}

impl Mode {
    /// All of them, in the order of their numbers on the command line.
    pub(crate) const ALL: [Mode; 4] = [Mode::Wait, Mode::Poll, Mode::CqWait, Mode::CqPoll];
}

impl Spec {
    /// As an argument of a party.
    pub(crate) fn argument(&self) -> String {
        let mode = Mode::ALL.iter().position(|mode| *mode == self.mode);
        let side = if self.server { "server" } else { "client" };
        let mut text = format!("{}:{side}:{}:{}", self.id, self.level, mode.unwrap_or(0));
        if let Some(at) = self.at {
            text += &format!(":{}", at.map(|byte| format!("{byte:02x}")).concat());
        }
        text
    }

    fn parse(text: &str) -> Option<Spec> {
        let mut parts = text.split(':');
        let id = parts.next()?.parse().ok()?;
        let server = parts.next()? == "server";
        let level = parts.next()?.parse().ok()?;
        let mode = *Mode::ALL.get(parts.next()?.parse::<usize>().ok()?)?;
        let at = match parts.next() {
            // Six bytes in the low ones of a number.
            Some(at) => {
                let [_, _, at @ ..] = u64::from_str_radix(at, 16).ok()?.to_be_bytes();
                Some(at)
            }
            None => None,
        };
        Some(Spec {
            id,
            server,
            at,
            level,
            mode,
        })
    }
}

/// The life of a party.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    // SAFETY: plain arguments. A party without a supervisor ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let specs: Option<Vec<Spec>> = options.ends.iter().map(|end| Spec::parse(end)).collect();
    let specs = specs.ok_or_else(|| format!("{:?}: no ends of links", options.ends))?;
    let on_network = specs.iter().any(|spec| spec.at.is_some());
    let node = Node::open(&options.library, &options.device, on_network);
    let spice = Spice {
        rdma: options.rdma,
        parting: options.parting,
    };
    let rounds: &'static [AtomicU64] = options
        .ends
        .iter()
        .map(|_| AtomicU64::new(0))
        .collect::<Vec<_>>()
        .leak();
    let mut threads = Vec::new();
    let mut ids = Vec::new();
    for (spec, rounds) in specs.into_iter().zip(rounds) {
        if node.levels & spec.level == 0 {
            return Err(format!("{} has no level {}", options.device, spec.level));
        }
        ids.push(spec.id);
        let mut dice = Dice::new(options.seed ^ ((spec.id as u64) << 32));
        let run = options.run.clone();
        threads.push(thread::spawn(move || {
            let mut link = Link::new(node, spec, &run);
            live(&mut link, &mut dice, spice, rounds);
            link.close();
        }));
    }
    obey(&ids, rounds);
    for thread in threads {
        if thread.join().is_err() {
            fault("a thread that panicked");
        }
    }
    node.close();
    say_counts();
    say("ended");
    Ok(())
}

/// An end: one connection after the other.
fn live(link: &mut Link, dice: &mut Dice, spice: Spice, rounds: &AtomicU64) {
    let mut scratch = Vec::new();
    loop {
        let ending = {
            // Receives are posted before the connection: the peer may send at once.
            let talk = Talk::new(link, dice, &mut scratch, spice);
            if link.connect() {
                talk.run(rounds)
            } else {
                Ending::Stopped
            }
        };
        if ending == Ending::Parted {
            count(&COUNTS.partings, 1);
        }
        let renew = spice.parting > 0 && dice.roll(4) == 0;
        link.disconnect(renew && ending != Ending::Stopped);
        if ending == Ending::Stopped {
            return;
        }
    }
}

/// Does what the supervisor says, until it says `end`.
fn obey(ids: &[usize], rounds: &[AtomicU64]) {
    for line in std::io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("beat") => {
                say_counts();
                let each = ids.iter().zip(rounds);
                let each: Vec<String> = each
                    .map(|(id, count)| format!("{id}:{}", count.load(Ordering::Relaxed)))
                    .collect();
                say(&format!("beat {}", each.join(" ")));
            }
            Ok("end") => break,
            Ok(other) => fault(&format!("an order {other:?}")),
            Err(_) => break,
        }
    }
    stop::request();
}

//! `scale`: all to all between more processes than there may be processors.
//!
//! In a round each process sends a message to each other one, and takes one of each. All receives of a
//! process complete on one completion queue. The first process starts the others, which share an arena with
//! it, and measures.
//!
//! ```text
//!   word 0   how often all have met      word 2   the round in which they stop (0: not known yet)
//!   word 1   who has come to the meeting
//! ```

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vipl_client::Library;
use vipl_tools::cq::Cq;
use vipl_tools::endpoint::{Endpoint, Layout};
use vipl_tools::error::PATIENCE_S;
use vipl_tools::nic::Nic;
use vipl_tools::patience::Patience;
use vipl_tools::rendezvous::Side;
use vipl_tools::rendezvous::{CONNECT_MS, Rendezvous};
use vipl_tools::stats::median;
use vipl_tools::{Error, Result, options, sys};

use crate::bench::{Figure, Params, figure};
use vipl_tools::arena::{ARENA_BYTES, Arena};

/// Processes at most: a connection's channel has eight bits for each of its two.
pub(crate) const MOST: usize = 256;
/// Receives of each VI; a process is one round ahead of another at most.
const RECEIVES: usize = 4;
/// Rounds from the decision to stop until the stop.
const NOTICE: u64 = 64;

/// What a process does when there is nothing to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idle {
    /// It polls on.
    Poll,
    /// It yields its processor to another process.
    Yield,
    /// It sleeps in VipCQWait.
    Wait,
}

/// How the processes play.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Game {
    pub(crate) params: Params,
    pub(crate) idle: Idle,
    pub(crate) runs: usize,
}

/// Who a started process is: `RANK,PROCESSES,ARENA,LEADER,BYTES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Member {
    rank: usize,
    processes: usize,
    arena: i32,
    leader: u32,
    bytes: usize,
}

impl Member {
    fn parse(text: &str) -> Option<Self> {
        let numbers: Vec<u32> = text
            .split(',')
            .map_while(|part| part.parse().ok())
            .collect();
        let [rank, processes, arena, leader, bytes] = numbers[..] else {
            return None;
        };
        let (rank, processes) = (rank as usize, processes as usize);
        let arena = i32::try_from(arena).ok()?;
        (rank < processes && processes <= MOST).then_some(Self {
            rank,
            processes,
            arena,
            leader,
            bytes: bytes as usize,
        })
    }
}

/// Plays with so many processes; the others are this program with the same options. Returns the number of
/// processes, the time of a round, and the messages of all of them.
pub(crate) fn measure(
    vipl: &'static Library,
    device: &str,
    game: Game,
    processes: usize,
) -> Result<Vec<Figure>> {
    if !(2..=MOST).contains(&processes) {
        return Err(Error::Usage(format!(
            "scale takes 2 to {MOST} processes, not {processes}"
        )));
    }
    let file = sys::anonymous_file(ARENA_BYTES)?;
    let fd = file.as_raw_fd();
    sys::set_inherited(fd, true)?;
    let (leader, bytes) = (std::process::id(), game.params.bytes);
    let others =
        (1..processes).map(|rank| start(&format!("{rank},{processes},{fd},{leader},{bytes}")));
    let mut others: Others = Others(others.collect::<Result<_>>()?);
    sys::set_inherited(fd, false)?;
    let member = Member {
        rank: 0,
        processes,
        arena: fd,
        leader,
        bytes,
    };
    let mut times = Player::new(vipl, device, game, member, &file)?.play(game)?;
    others.end()?;
    times.sort_by(f64::total_cmp);
    let round = median(&times);
    let messages = (processes * (processes - 1)) as f64 / round;
    Ok(vec![
        figure("processes", processes as f64, ""),
        figure("round", round / 1e3, "µs"),
        figure("messages", messages * 1e3, "M/s"),
    ])
}

/// What a process does that `measure` has started.
pub(crate) fn member(
    text: &str,
    open: impl Fn() -> Result<&'static Library>,
    device: &str,
    game: Game,
) -> Result<()> {
    sys::die_with_parent();
    let bad = || Error::Usage("--member is internal".to_owned());
    let member = Member::parse(text).ok_or_else(bad)?;
    let file = File::from(sys::adopt(member.arena)?);
    Player::new(open()?, device, game, member, &file)?.play(game)?;
    Ok(())
}

fn start(member: &str) -> Result<Child> {
    let program = std::env::current_exe().map_err(|error| Error::io("finding myself", error))?;
    let mut command = Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .args(["--member", member]);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
        .spawn()
        .map_err(|error| Error::io("starting a process", error))
}

/// The other processes; killed when dropped.
struct Others(Vec<Child>);

impl Others {
    /// Waits until all have ended well.
    fn end(&mut self) -> Result<()> {
        for child in &mut self.0 {
            let status = child
                .wait()
                .map_err(|error| Error::io("a process", error))?;
            if !status.success() {
                return Err(Error::Peer("failed".to_owned()));
            }
        }
        Ok(())
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

struct Player {
    member: Member,
    arena: Arena,
    cq: Cq,
    /// By rank; None at this process's own.
    ends: Vec<Option<Endpoint>>,
    /// Messages that have come from each.
    taken: Vec<u64>,
}

impl Player {
    /// Connects with all others. The server of two is the one with the lower rank.
    fn new(
        vipl: &'static Library,
        device: &str,
        game: Game,
        member: Member,
        file: &File,
    ) -> Result<Self> {
        let Member {
            rank, processes, ..
        } = member;
        let nic = Nic::open(vipl, device)?;
        let params = game.params;
        let vi = options::vi_spec(
            nic.attributes(),
            params.level,
            member.bytes,
            params.transfer_max,
        )?;
        let cq = Cq::new(&nic, (2 * RECEIVES * processes) as u64)?;
        let layout = Layout {
            sends: 1,
            receives: RECEIVES,
            bytes: member.bytes,
            separate: false,
        };
        let mut ends = Vec::with_capacity(processes);
        for other in 0..processes {
            let endpoint = (other != rank).then(|| Endpoint::new(&nic, vi, layout, Some(&cq)));
            let endpoint = endpoint.transpose()?;
            if let Some(endpoint) = &endpoint {
                endpoint.sends[0].set_immediate(rank as u32);
            }
            ends.push(endpoint);
        }
        let player = Self {
            member,
            arena: Arena::new(file)?,
            cq,
            taken: vec![0; processes],
            ends,
        };
        let key = [b"vips".as_slice(), &member.leader.to_ne_bytes()].concat();
        player.meet()?;
        for (low, high) in pairs(processes).filter(|pair| pair.0 == rank || pair.1 == rank) {
            let (side, other) = if low == rank {
                (Side::Server, high)
            } else {
                (Side::Driver, low)
            };
            let remote_host = &nic.attributes().address;
            let (nic, key) = (&nic, &key);
            let rendezvous = Rendezvous {
                nic,
                side,
                remote_host,
                key,
            };
            if let Some(endpoint) = &player.ends[other] {
                let limit = Some(Duration::from_millis(3 * CONNECT_MS));
                rendezvous.join(&endpoint.vi, (low * MOST + high) as u32, limit)?;
            }
        }
        Ok(player)
    }

    /// Plays all runs; returns the time of a round in ns for each.
    fn play(mut self, game: Game) -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(game.runs);
        for run in 0..=game.runs {
            // The first one warms up.
            let params = game.params;
            let time = if run == 0 {
                params.time / 5
            } else {
                params.time
            };
            self.taken.fill(0);
            if self.member.rank == 0 {
                let rounds = params.iterations.unwrap_or(0);
                self.stop().store(rounds, Ordering::Release);
            }
            self.meet()?;
            let start = Instant::now();
            let rounds = self.rounds(game.idle, time)?;
            let taken = start.elapsed();
            self.meet()?;
            if run > 0 {
                times.push(taken.as_nanos() as f64 / rounds as f64);
            }
        }
        Ok(times)
    }

    fn stop(&self) -> &AtomicU64 {
        self.arena.word(2)
    }

    /// Plays until the round that the first process has decided on, and returns its number.
    fn rounds(&mut self, idle: Idle, time: Duration) -> Result<u64> {
        let start = Instant::now();
        for round in 0.. {
            if self.member.rank == 0
                && round % 16 == 0
                && self.stop().load(Ordering::Relaxed) == 0
                && start.elapsed() > time
            {
                // No process is more than one round ahead, so all of them see it in time.
                self.stop().store(round + NOTICE, Ordering::Release);
            }
            let stop = self.stop().load(Ordering::Acquire);
            if stop != 0 && round >= stop {
                return Ok(round);
            }
            self.send_all(idle)?;
            self.take_all(idle, round)?;
        }
        unreachable!("rounds do not end by themselves")
    }

    fn send_all(&self, idle: Idle) -> Result<()> {
        let Member {
            rank, processes, ..
        } = self.member;
        for step in 1..processes {
            let Some(endpoint) = &self.ends[(rank + step) % processes] else {
                continue;
            };
            endpoint.vi.post_send(endpoint.sends[0])?;
            let mut patience = Patience::new("sending to all");
            while endpoint.vi.send_done()?.is_none() {
                match idle {
                    Idle::Poll => patience.spend()?,
                    Idle::Yield => give_way(&mut patience)?,
                    Idle::Wait => {
                        let sent = endpoint.vi.send_wait(PATIENCE_S * 1000)?;
                        sent.ok_or(Error::Silence("sending to all"))?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn take_all(&mut self, idle: Idle, round: u64) -> Result<()> {
        // Those that were faster have sent the next one already.
        let missing = self.taken.iter().filter(|taken| **taken <= round).count();
        let mut missing = missing - 1; // This process itself sends nothing to itself.
        let mut patience = Patience::new("waiting for a message of each");
        while missing > 0 {
            let descriptor = match idle {
                Idle::Wait => self.cq.receive_wait(PATIENCE_S * 1000)?,
                Idle::Poll | Idle::Yield => self.cq.receive_done()?,
            };
            let Some(descriptor) = descriptor else {
                match idle {
                    Idle::Poll => patience.spend()?,
                    Idle::Yield => give_way(&mut patience)?,
                    Idle::Wait => return Err(Error::Silence("waiting for a message of each")),
                }
                continue;
            };
            let from = descriptor.immediate() as usize;
            let Some(Some(endpoint)) = self.ends.get(from) else {
                return Err(Error::Corrupt(format!(
                    "a message comes from process {from}"
                )));
            };
            endpoint.vi.post_receive(descriptor)?;
            missing -= usize::from(self.taken[from] == round);
            self.taken[from] += 1;
        }
        Ok(())
    }

    /// Waits until all processes are here.
    fn meet(&self) -> Result<()> {
        let (meetings, here) = (self.arena.word(0), self.arena.word(1));
        let meeting = meetings.load(Ordering::Acquire);
        if here.fetch_add(1, Ordering::AcqRel) + 1 == self.member.processes as u64 {
            here.store(0, Ordering::Relaxed);
            meetings.store(meeting + 1, Ordering::Release); // Pairs with the loads of the others.
            return Ok(());
        }
        let start = Instant::now();
        while meetings.load(Ordering::Acquire) == meeting {
            if start.elapsed() > Duration::from_secs(3 * PATIENCE_S) {
                return Err(Error::Silence("waiting for the other processes"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

fn give_way(patience: &mut Patience) -> Result<()> {
    std::thread::yield_now();
    patience.spend()
}

/// All pairs of processes, in an order in which no two of them wait for each other.
fn pairs(processes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..processes).flat_map(move |low| (low + 1..processes).map(move |high| (low, high)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_knows_its_place() {
        let member = Member::parse("3,8,5,4711,64").unwrap();
        assert_eq!((member.rank, member.processes), (3, 8));
        assert_eq!((member.arena, member.leader, member.bytes), (5, 4711, 64));
        for wrong in [
            "",
            "1,2,3,4",
            "8,8,5,1,8",
            "0,2,3,4,5,6",
            "a,2,3,4,8",
            "0,1000,3,4,8",
        ] {
            assert_eq!(Member::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_two_processes_are_a_pair_once() {
        let all: Vec<_> = pairs(4).collect();
        assert_eq!(all, [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]);
    }
}

//! The helpers of the users, as the agent sees them: started when a user first sends a descriptor, given jobs,
//! killed when they hang, and dismissed when their user has gone. See [`program`](super::program).

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use kagent_proto::MESSAGE_BYTES_MAX;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollFlags};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::Pid;
use zerocopy::{FromBytes, IntoBytes};

use crate::ClientId;
use crate::runtime::helpers::held::{Bin, Held};
use crate::runtime::helpers::program::{
    ANSWER_BYTES, Answer, CLOSE, GOOD, Job, KEEP, NOTHING, RECEIVE,
};
use crate::runtime::log::Log;
use crate::runtime::options::HELPER;
use crate::runtime::processes::spawn::{self, Owner};
use crate::runtime::sockets::packet::{self, Received};
use crate::runtime::token::Token;

/// How long a helper may be at one job, in nanoseconds. A job takes microseconds, but closing a packet socket has
/// been seen to take the kernel eight seconds on a busy machine. Nobody but the helper's user waits for it.
const STUCK_NS: u64 = 20_000_000_000;
/// How long a helper stays without a process of its user.
const LINGER_NS: u64 = 1_000_000_000;
/// Most helpers of one user that have been killed and do not end. Only what no signal interrupts keeps one.
const DEAD_PER_USER_MAX: usize = 16;
/// Ourselves, also after the file has been replaced.
const PROGRAM: &str = "/proc/self/exe";

#[derive(Debug)]
struct Helper {
    pid: i32,
    control: OwnedFd,
    /// Jobs without an answer.
    outstanding: usize,
    /// Processes whose messages it is receiving.
    receiving: BTreeSet<ClientId>,
    /// Since when it has been at the present job, or has had none.
    since: u64,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Helpers {
    running: BTreeMap<u32, Helper>,
    /// Those that have been told to end, with their users.
    ending: BTreeMap<i32, u32>,
    /// Processes of each user.
    processes: BTreeMap<u32, usize>,
    /// What waits for a helper whose user has too many dead ones. The kernel bounds it: a socket is here
    /// because descriptors are in flight in it, and those count against the limit of the one who sent them.
    waiting: Vec<(u32, OwnedFd)>,
    retry_at: u64,
    /// Processes whose message was lost with a helper.
    lost: Vec<ClientId>,
    pub(crate) bin: Bin,
}

/// What a helper has received for the agent.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) client: ClientId,
    /// `None`: there was none.
    pub(crate) bytes: Option<Vec<u8>>,
    /// `None`: they were too many, or such as the agent does not keep.
    pub(crate) fds: Option<Vec<Rc<Held>>>,
}

impl Helpers {
    pub(crate) fn new() -> Self {
        Self {
            running: BTreeMap::new(),
            ending: BTreeMap::new(),
            processes: BTreeMap::new(),
            waiting: Vec::new(),
            retry_at: 0,
            lost: Vec::new(),
            bin: Bin::default(),
        }
    }

    /// A process of this user is served from now on.
    pub(crate) fn process_came(&mut self, uid: u32) {
        *self.processes.entry(uid).or_insert(0) += 1;
    }

    /// It is not any more.
    pub(crate) fn process_left(&mut self, uid: u32, now: u64) {
        if let Some(count) = self.processes.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.processes.remove(&uid);
                if let Some(helper) = self.running.get_mut(&uid)
                    && helper.outstanding == 0
                {
                    helper.since = now;
                }
            }
        }
    }

    /// Has the next message of a process received. [`message`](Self::message) or [`lost`](Self::lost) gives
    /// the outcome.
    pub(crate) fn receive(
        &mut self,
        (uid, client): (u32, ClientId),
        socket: &OwnedFd,
        now: u64,
        epoll: &Epoll,
        log: &Log,
    ) -> Result<(), Errno> {
        let job = Job {
            kind: RECEIVE,
            reserved: 0,
            client: client.0,
        };
        self.give(uid, job, Some(socket.as_raw_fd()), now, epoll, log)?;
        if let Some(helper) = self.running.get_mut(&uid) {
            helper.receiving.insert(client);
        }
        Ok(())
    }

    /// Has descriptors closed.
    pub(crate) fn close(
        &mut self,
        uid: u32,
        fds: Vec<OwnedFd>,
        now: u64,
        epoll: &Epoll,
        log: &Log,
    ) {
        let job = |kind| Job {
            kind,
            reserved: 0,
            client: 0,
        };
        let mut given = 0;
        for fd in fds {
            match self.give(uid, job(KEEP), Some(fd.as_raw_fd()), now, epoll, log) {
                // This descriptor is dropped here, and it is not the last: the helper waits for the next job.
                Ok(()) => given += 1,
                Err(cause) => {
                    log.debug("helper", format_args!("user {uid}: {cause}"));
                    self.waiting.push((uid, fd));
                    self.retry_at = now + LINGER_NS;
                }
            }
        }
        if given > 0 {
            // If this fails, the helper has been killed, and its end has closed them.
            let _ = self.give(uid, job(CLOSE), None, now, epoll, log);
        }
    }

    fn give(
        &mut self,
        uid: u32,
        job: Job,
        fd: Option<RawFd>,
        now: u64,
        epoll: &Epoll,
        log: &Log,
    ) -> Result<(), Errno> {
        // A helper whose queue is full hangs. The next one begins with an empty queue.
        for _ in 0..2 {
            if !self.running.contains_key(&uid) {
                self.start(uid, now, epoll)?;
            }
            let Some(helper) = self.running.get_mut(&uid) else {
                break;
            };
            match packet::send(helper.control.as_fd(), job.as_bytes(), fd.as_slice()) {
                Ok(true) => {
                    if helper.outstanding == 0 {
                        helper.since = now;
                    }
                    helper.outstanding += usize::from(job.kind != KEEP);
                    return Ok(());
                }
                Ok(false) | Err(Errno::EPIPE | Errno::ECONNRESET) => self.kill(uid, log),
                Err(cause) => return Err(cause),
            }
        }
        Err(Errno::EAGAIN)
    }

    fn start(&mut self, uid: u32, now: u64, epoll: &Epoll) -> Result<(), Errno> {
        let dead = self.ending.values().filter(|of| **of == uid).count();
        if dead >= DEAD_PER_USER_MAX {
            return Err(Errno::EAGAIN);
        }
        let flags = SockFlag::SOCK_CLOEXEC;
        let (control, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        let event = Token::Helper(uid).event(EpollFlags::EPOLLIN);
        epoll.add(&control, event)?;
        let program = Path::new(PROGRAM);
        let pid = spawn::spawn(
            program,
            &[&format!("--{HELPER}")],
            theirs.as_fd(),
            Owner::Agent,
        )?;
        let helper = Helper {
            pid,
            control,
            outstanding: 0,
            receiving: BTreeSet::new(),
            since: now,
        };
        self.running.insert(uid, helper);
        Ok(())
    }

    /// Ends a helper that hangs. Its end closes all that it has and all that it was sent.
    fn kill(&mut self, uid: u32, log: &Log) {
        let Some(helper) = self.running.get(&uid) else {
            return;
        };
        log.warn(
            "helper",
            format_args!(
                "what user {uid} has sent cannot be closed: helper {} is killed, his processes are dropped",
                helper.pid
            ),
        );
        let _ = kill(Pid::from_raw(helper.pid), Signal::SIGKILL);
        self.ending.insert(helper.pid, uid);
        self.forget(uid);
    }

    /// The agent leaves.
    pub(crate) fn part(&self) {
        for helper in self.running.values() {
            let _ = kill(Pid::from_raw(helper.pid), Signal::SIGKILL);
        }
    }

    /// Takes a helper that has ended, or will, out of the table.
    fn forget(&mut self, uid: u32) {
        let Some(helper) = self.running.remove(&uid) else {
            return;
        };
        self.lost.extend(&helper.receiving);
        // What it has answered holds descriptors, too.
        let mut bytes = [0; ANSWER_BYTES];
        while let Ok(Received::Packet(_, received)) =
            packet::receive_all(helper.control.as_fd(), &mut bytes, false)
        {
            let fds = received.fds.into_iter().map(|fd| (uid, fd));
            self.bin.borrow_mut().extend(fds);
        }
    }

    /// The next message that the helper of a user has received.
    pub(crate) fn message(&mut self, uid: u32, now: u64) -> Option<Message> {
        let mut bytes = [0; ANSWER_BYTES];
        loop {
            let helper = self.running.get_mut(&uid)?;
            let answer = packet::receive_all(helper.control.as_fd(), &mut bytes, false);
            let Ok(Received::Packet(length, received)) = answer else {
                // Its end is told by SIGCHLD.
                return None;
            };
            helper.outstanding = helper.outstanding.saturating_sub(1);
            helper.since = now;
            let (answer, message) = Answer::read_from_prefix(&bytes[..length]).ok()?;
            if answer.kind != RECEIVE {
                continue;
            }
            let client = ClientId(answer.client);
            helper.receiving.remove(&client);
            let fds = received.fds.into_iter().enumerate().map(|(i, fd)| {
                let memory = answer.memory >> i & 1 == 1;
                // To close memory takes no longer than its size, which is bounded.
                Rc::new(if memory {
                    Held::own(fd)
                } else {
                    Held::shared(fd, uid, &self.bin)
                })
            });
            let fds: Vec<Rc<Held>> = fds.collect();
            let good = answer.verdict == GOOD && message.len() <= MESSAGE_BYTES_MAX + 1;
            let bytes = (answer.verdict != NOTHING).then(|| message.to_vec());
            return Some(Message {
                client,
                bytes,
                fds: good.then_some(fds),
            });
        }
    }

    /// Processes whose message was lost with a helper: they have to be dropped.
    pub(crate) fn lost(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.lost)
    }

    /// When [`tick`](Self::tick) has something to do.
    pub(crate) fn next(&self) -> Option<u64> {
        let of_helpers = self.running.iter().filter_map(|(uid, helper)| {
            if helper.outstanding > 0 {
                return Some(helper.since + STUCK_NS);
            }
            let alone = !self.processes.contains_key(uid);
            alone.then_some(helper.since + LINGER_NS)
        });
        let retry = (!self.waiting.is_empty()).then_some(self.retry_at);
        of_helpers.chain(retry).min()
    }

    /// Kills those that hang, dismisses those that nobody needs, and tries again what had to wait.
    pub(crate) fn tick(&mut self, now: u64, epoll: &Epoll, log: &Log) {
        if self.next().is_none_or(|next| next > now) {
            return;
        }
        let due = self.running.iter().filter_map(|(uid, helper)| {
            let hangs = helper.outstanding > 0 && now >= helper.since + STUCK_NS;
            let alone = helper.outstanding == 0
                && now >= helper.since + LINGER_NS
                && !self.processes.contains_key(uid);
            (hangs || alone).then_some((*uid, hangs))
        });
        let due: Vec<(u32, bool)> = due.collect();
        for (uid, hangs) in due {
            if hangs {
                self.kill(uid, log);
            } else if let Some(helper) = self.running.remove(&uid) {
                // It may still be closing what it has refused; its end does that as well.
                let _ = kill(Pid::from_raw(helper.pid), Signal::SIGKILL);
                self.ending.insert(helper.pid, uid);
            }
        }
        if now >= self.retry_at {
            for (uid, fd) in std::mem::take(&mut self.waiting) {
                self.close(uid, vec![fd], now, epoll, log);
            }
        }
    }

    /// A child has ended.
    pub(crate) fn reaped(&mut self, pid: i32, how: &str, log: &Log) {
        if self.ending.remove(&pid).is_some() {
            return;
        }
        let mut all = self.running.iter();
        if let Some(uid) = all.find_map(|(uid, helper)| (helper.pid == pid).then_some(*uid)) {
            log.warn("helper", format_args!("helper {pid} of user {uid}: {how}"));
            self.forget(uid);
        }
    }
}

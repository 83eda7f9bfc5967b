//! The agent's side of helpers: it starts one when a user first sends a descriptor, sends it jobs, kills it
//! when it hangs, and ends it when its user has no process left. See [`program`](super::program).

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::rc::Rc;

use kagent_proto::MESSAGE_BYTES_MAX;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vipl_sys::seqpacket;
use zerocopy::{FromBytes, IntoBytes};

use crate::ClientId;
use crate::runtime::context::Context;
use crate::runtime::error::errno;
use crate::runtime::helpers::held::{CloseQueue, Held, SharedFd};
use crate::runtime::helpers::program::{
    ANSWER_BYTES, Answer, CLOSE, GOOD, Job, KEEP, NOTHING, RECEIVE,
};
use crate::runtime::log::Log;
use crate::runtime::options::HELPER;
use crate::runtime::processes::spawn::{self, Owner};
use crate::runtime::sockets::packet::{self, Received};
use crate::runtime::token::Token;

/// Maximum duration of one job, in nanoseconds. A job takes microseconds, but closing a packet socket has
/// taken the kernel eight seconds on a busy machine. Only the helper's user waits for it.
const STUCK_NS: u64 = 20_000_000_000;
/// Time for which a helper is kept after the last process of its user has exited.
const LINGER_NS: u64 = 1_000_000_000;
/// Maximum helpers of one user that were killed and have not exited. Only an uninterruptible wait in the
/// kernel keeps one.
const DEAD_PER_USER_MAX: usize = 16;
/// The agent's own program, even if the file was replaced.
const PROGRAM: &str = "/proc/self/exe";

#[derive(Debug)]
struct Helper {
    pid: i32,
    control: OwnedFd,
    /// Unanswered jobs.
    outstanding: usize,
    /// Processes whose message it is receiving.
    receiving: BTreeSet<ClientId>,
    /// Start of the current job or of the idle time.
    since: u64,
}

/// All helpers.
#[derive(Debug)]
pub(crate) struct Helpers {
    running: BTreeMap<u32, Helper>,
    /// Killed helpers that have not been reaped, with their users.
    ending: BTreeMap<i32, u32>,
    /// Number of processes of each user.
    processes: BTreeMap<u32, usize>,
    /// Descriptors that wait for a helper because too many helpers of their user were killed. The kernel
    /// bounds their number: a socket is here because descriptors are in flight in it, and those count against
    /// the limit of their sender.
    waiting: Vec<(u32, OwnedFd)>,
    retry_at: u64,
    /// Processes whose message was lost with their helper.
    lost: Vec<ClientId>,
    /// Descriptors that the agent has dropped, to be closed by a helper.
    to_close: CloseQueue,
}

/// A message received by a helper.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) client: ClientId,
    /// `None` if there was none.
    pub(crate) bytes: Option<Vec<u8>>,
    /// `None` if there were too many, or some of a kind that the agent does not keep.
    pub(crate) fds: Option<Vec<SharedFd>>,
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
            to_close: CloseQueue::default(),
        }
    }

    /// Counts a process of this user that connected.
    pub(crate) fn add_process(&mut self, uid: u32) {
        *self.processes.entry(uid).or_insert(0) += 1;
    }

    /// Counts a process of this user that exited.
    pub(crate) fn remove_process(&mut self, uid: u32, now: u64) {
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

    /// Makes a helper receive the next message of a process. [`message`](Self::message) or
    /// [`lost`](Self::lost) returns the outcome.
    pub(crate) fn receive(
        &mut self,
        context: &Context<'_>,
        uid: u32,
        client: ClientId,
        socket: &OwnedFd,
    ) -> Result<(), Errno> {
        let job = Job {
            kind: RECEIVE,
            reserved: 0,
            client: client.0,
        };
        self.send_job(context, uid, job, Some(socket.as_raw_fd()))?;
        if let Some(helper) = self.running.get_mut(&uid) {
            helper.receiving.insert(client);
        }
        Ok(())
    }

    /// Makes a helper close descriptors.
    pub(crate) fn close(&mut self, context: &Context<'_>, uid: u32, fds: Vec<OwnedFd>) {
        let job = |kind| Job {
            kind,
            reserved: 0,
            client: 0,
        };
        let mut given = 0;
        for fd in fds {
            match self.send_job(context, uid, job(KEEP), Some(fd.as_raw_fd())) {
                // The agent's copy is dropped here and is not the last one: the helper keeps its copy until
                // the next job.
                Ok(()) => given += 1,
                Err(cause) => {
                    context
                        .log
                        .debug("helper", format_args!("user {uid}: {cause}"));
                    self.waiting.push((uid, fd));
                    self.retry_at = context.now() + LINGER_NS;
                }
            }
        }
        if given > 0 {
            // If this fails, the helper was killed, which closed them.
            let _ = self.send_job(context, uid, job(CLOSE), None);
        }
    }

    fn send_job(
        &mut self,
        context: &Context<'_>,
        uid: u32,
        job: Job,
        fd: Option<RawFd>,
    ) -> Result<(), Errno> {
        let now = context.now();
        // A helper with a full queue hangs. Its successor starts with an empty queue.
        for _ in 0..2 {
            if !self.running.contains_key(&uid) {
                self.start(context, uid)?;
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
                Ok(false) | Err(Errno::EPIPE | Errno::ECONNRESET) => self.kill(uid, context.log),
                Err(cause) => return Err(cause),
            }
        }
        Err(Errno::EAGAIN)
    }

    fn start(&mut self, context: &Context<'_>, uid: u32) -> Result<(), Errno> {
        let dead = self.ending.values().filter(|of| **of == uid).count();
        if dead >= DEAD_PER_USER_MAX {
            return Err(Errno::EAGAIN);
        }
        let (control, theirs) = seqpacket::pair().map_err(|cause| errno(&cause))?;
        context.add(&control, Token::Helper(uid), EpollFlags::EPOLLIN)?;
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
            since: context.now(),
        };
        self.running.insert(uid, helper);
        Ok(())
    }

    /// Kills a helper that hangs. Its exit closes all descriptors that it holds or that were sent to it.
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

    /// Kills all helpers when the agent exits.
    pub(crate) fn shut_down(&self) {
        for helper in self.running.values() {
            let _ = kill(Pid::from_raw(helper.pid), Signal::SIGKILL);
        }
    }

    /// Removes a helper that has exited or was killed.
    fn forget(&mut self, uid: u32) {
        let Some(helper) = self.running.remove(&uid) else {
            return;
        };
        self.lost.extend(&helper.receiving);
        // Its unread answers also hold descriptors.
        let mut bytes = [0; ANSWER_BYTES];
        while let Ok(Received::Packet(_, received)) =
            packet::receive_all(helper.control.as_fd(), &mut bytes, false)
        {
            let fds = received.fds.into_iter().map(|fd| (uid, fd));
            self.to_close.borrow_mut().extend(fds);
        }
    }

    /// The next message that the helper of a user has received.
    pub(crate) fn message(&mut self, uid: u32, now: u64) -> Option<Message> {
        let mut bytes = [0; ANSWER_BYTES];
        loop {
            let helper = self.running.get_mut(&uid)?;
            let answer = packet::receive_all(helper.control.as_fd(), &mut bytes, false);
            let Ok(Received::Packet(length, received)) = answer else {
                // SIGCHLD reports its exit.
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
                // Closing memory takes no longer than its size requires, which is limited.
                match memory {
                    true => Rc::new(Held::own(fd)),
                    false => self.share(uid, fd),
                }
            });
            let fds: Vec<SharedFd> = fds.collect();
            let good = answer.verdict == GOOD && message.len() <= MESSAGE_BYTES_MAX + 1;
            let bytes = (answer.verdict != NOTHING).then(|| message.to_vec());
            return Some(Message {
                client,
                bytes,
                fds: good.then_some(fds),
            });
        }
    }

    /// Takes the processes whose message was lost with a helper; they must be removed.
    pub(crate) fn lost(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.lost)
    }

    /// The next time at which [`tick`](Self::tick) has work.
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

    /// A descriptor that processes of this user will hold as well: a helper closes the agent's copy.
    pub(crate) fn share(&self, uid: u32, fd: OwnedFd) -> SharedFd {
        Rc::new(Held::shared(fd, uid, &self.to_close))
    }

    /// Passes dropped descriptors to helpers, kills helpers that hang, ends those that are no longer needed,
    /// and retries descriptors that had to wait.
    pub(crate) fn tick(&mut self, context: &Context<'_>) {
        let mut by_user: BTreeMap<u32, Vec<OwnedFd>> = BTreeMap::new();
        for (uid, fd) in self.to_close.take() {
            by_user.entry(uid).or_default().push(fd);
        }
        for (uid, fds) in by_user {
            self.close(context, uid, fds);
        }
        let now = context.now();
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
                self.kill(uid, context.log);
            } else if let Some(helper) = self.running.remove(&uid) {
                // It may still be closing rejected descriptors; its exit closes them as well.
                let _ = kill(Pid::from_raw(helper.pid), Signal::SIGKILL);
                self.ending.insert(helper.pid, uid);
            }
        }
        if now >= self.retry_at {
            for (uid, fd) in std::mem::take(&mut self.waiting) {
                self.close(context, uid, vec![fd]);
            }
        }
    }

    /// A child was reaped.
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

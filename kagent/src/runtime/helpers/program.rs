//! The helper: a process that receives and closes descriptors on behalf of the agent.
//!
//! Receiving a descriptor is harmless; closing it is not. The sender can determine how long that takes: with
//! SO_LINGER and unsent data, with a file of a FUSE file system, or with an eventfd in an epoll set whose
//! owner is stopped in a page fault. Dropping an unread message closes its descriptors, and closing a socket
//! drops its unread messages. Therefore the agent does neither. It inspects the next message (`MSG_PEEK`
//! without room for descriptors, which takes at most a reference, never the last one), and a helper receives
//! a message with descriptors. Descriptors that the agent can hold safely are passed back to it: sealed
//! memory files, eventfds and UDP sockets. The helper closes all others, and the sockets and eventfds that
//! the agent no longer needs.
//!
//! One helper serves one user, so that no user waits for descriptors of another, and the agent kills a helper
//! that hangs: the exit of a process does not linger. A helper is `vipkad --descriptor-helper`, runs as the
//! agent's user, and exits when its standard input, a socket, hangs up.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;

use kagent_proto::{FDS_MAX, MESSAGE_BYTES_MAX};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::stat::fstat;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::runtime::sockets::option::udp_address;
use crate::runtime::sockets::packet::{self, PACKET_BYTES, Received};

/// Maximum size of a memory file. Plug-ins use a few hundred KiB.
const MEMORY_BYTES_MAX: i64 = 64 << 20;

/// [`Job::kind`]: receive the next message from the attached socket.
pub(crate) const RECEIVE: u32 = 1;
/// [`Job::kind`]: keep the attached descriptor. There is no answer.
pub(crate) const KEEP: u32 = 2;
/// [`Job::kind`]: close all kept descriptors. The agent sends this after it has dropped its own copies:
/// otherwise the last one might be the agent's.
pub(crate) const CLOSE: u32 = 3;

/// A job from the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Job {
    pub(crate) kind: u32,
    pub(crate) reserved: u32,
    pub(crate) client: u64,
}

/// [`Answer::verdict`]: the message follows, with its descriptors attached.
pub(crate) const GOOD: u32 = 0;
/// The message follows; there were too many descriptors, or some of a kind that the agent does not keep.
pub(crate) const UNFIT: u32 = 1;
/// There was no message.
pub(crate) const NOTHING: u32 = 2;

/// The answer to each job but `KEEP`. The bytes of the message follow.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct Answer {
    pub(crate) kind: u32,
    pub(crate) verdict: u32,
    pub(crate) client: u64,
    /// Bit mask of the descriptors that are memory files.
    pub(crate) memory: u32,
    pub(crate) reserved: u32,
}

/// Bytes of an answer with the longest message.
pub(crate) const ANSWER_BYTES: usize = size_of::<Answer>() + PACKET_BYTES;

/// Kinds of descriptors that the agent keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Memory,
    Event,
    /// A UDP socket, which does not linger.
    Socket,
}

/// The kind of a descriptor, if the agent may keep it. Nothing here calls into the file's own file system,
/// which may be the sender's.
fn fit(fd: &OwnedFd) -> Option<Fit> {
    if let Ok(seals) = fcntl(fd, FcntlArg::F_GET_SEALS) {
        // It has seals, so it was made by `memfd_create`.
        let wanted = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let sealed = SealFlag::from_bits_retain(seals).contains(wanted);
        let small = || fstat(fd).is_ok_and(|file| file.st_size as i64 <= MEMORY_BYTES_MAX);
        return (sealed && small()).then_some(Fit::Memory);
    }
    if udp_address(fd.as_raw_fd()).is_some() {
        return Some(Fit::Socket);
    }
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let target = std::fs::read_link(link).ok()?;
    (target.as_os_str() == "anon_inode:[eventfd]").then_some(Fit::Event)
}

/// The state of the helper.
#[derive(Default)]
struct Work {
    kept: Vec<OwnedFd>,
    answer: Vec<u8>,
}

impl Work {
    /// Receives the next message from a socket. Returns the descriptors to attach to the answer, and those to
    /// close once it has been sent.
    fn receive(&mut self, mut head: Answer, socket: &OwnedFd) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        let mut bytes = [0; PACKET_BYTES];
        let got = packet::receive_all(socket.as_fd(), &mut bytes, false);
        let Ok(Received::Packet(length, received)) = got else {
            self.answer.extend_from_slice(head.as_bytes());
            return Default::default();
        };
        let fits: Option<Vec<Fit>> = received.fds.iter().map(fit).collect();
        let fits = fits.filter(|all| received.whole && all.len() <= FDS_MAX);
        head.verdict = if fits.is_some() { GOOD } else { UNFIT };
        for (i, fit) in fits.iter().flatten().enumerate() {
            head.memory |= u32::from(*fit == Fit::Memory) << i;
        }
        self.answer.extend_from_slice(head.as_bytes());
        self.answer.extend_from_slice(&bytes[..length]);
        if fits.is_some() {
            (received.fds, Vec::new())
        } else {
            (Vec::new(), received.fds)
        }
    }

    /// Performs one job. Returns false if the agent has exited.
    fn perform(&mut self, agent: &OwnedFd, job: Job, mut fds: Vec<OwnedFd>) -> bool {
        if job.kind == KEEP {
            self.kept.append(&mut fds);
            return true;
        }
        let head = Answer {
            kind: job.kind,
            verdict: NOTHING,
            client: job.client,
            memory: 0,
            reserved: 0,
        };
        self.answer.clear();
        let (back, close) = match fds.first() {
            Some(socket) if job.kind == RECEIVE => self.receive(head, socket),
            _ => {
                self.kept.clear();
                self.answer.extend_from_slice(head.as_bytes());
                Default::default()
            }
        };
        let raw: Vec<RawFd> = back.iter().map(AsRawFd::as_raw_fd).collect();
        let sent = packet::send_waiting(agent.as_fd(), &self.answer, &raw).is_ok();
        drop(close);
        sent
    }
}

/// The program `vipkad --descriptor-helper`.
pub fn help() -> ExitCode {
    let _ = nix::sys::prctl::set_name(c"vipkad-helper");
    // A helper that hangs does not notice that its socket hangs up.
    let _ = nix::sys::prctl::set_pdeathsig(Some(nix::sys::signal::Signal::SIGKILL));
    // SAFETY: the agent passes the socket as standard input; nothing else in this program uses it.
    let agent = unsafe { OwnedFd::from_raw_fd(0) };
    let mut work = Work::default();
    let mut bytes = [0; PACKET_BYTES];
    loop {
        let (job, fds) = match packet::receive_all(agent.as_fd(), &mut bytes, true) {
            Ok(Received::Packet(length, received)) => {
                match Job::read_from_bytes(&bytes[..length]) {
                    Ok(job) => (job, received.fds),
                    Err(_) => return ExitCode::FAILURE,
                }
            }
            Ok(Received::Nothing) | Err(Errno::EINTR) => continue,
            // The agent has exited, or a user started this program by hand.
            Ok(Received::End) => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        };
        if !work.perform(&agent, job, fds) {
            return ExitCode::SUCCESS;
        }
    }
}

const _: () = assert!(PACKET_BYTES > MESSAGE_BYTES_MAX && FDS_MAX <= 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::segment;
    use nix::sys::eventfd::EventFd;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    #[test]
    fn memory_that_is_sealed_events_and_udp_fit_and_nothing_else() {
        assert_eq!(fit(&segment::create(4096).unwrap()), Some(Fit::Memory));
        assert_eq!(fit(&segment::create(128 << 20).unwrap()), None);
        let event = EventFd::new().unwrap();
        let event: OwnedFd = event.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(fit(&event), Some(Fit::Event));
        let loose = memfd_create(
            c"loose",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        );
        assert_eq!(fit(&loose.unwrap()), None);
        for other in ["/dev/null", "/proc/self/stat", "/"] {
            assert_eq!(fit(&std::fs::File::open(other).unwrap().into()), None);
        }
        let (socket, pipe) = (
            std::os::unix::net::UnixDatagram::unbound().unwrap(),
            std::io::pipe().unwrap(),
        );
        assert_eq!(fit(&socket.into()), None);
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(fit(&udp.into()), Some(Fit::Socket));
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(fit(&tcp.into()), None);
        assert_eq!(fit(&pipe.0.into()), None);
    }
}

//! The connection to the device.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_clan_proto::channel;
use vipl_clan_proto::message::{Reply, Request, VERSION, flag, op, status};
use vipl_clan_proto::nic::{DEVICE_BYTES, DevicePage, NIC_BYTES, NicPage, REGIONS_AT, REGIONS_MAX};
use vipl_clan_proto::vi::VI_BYTES;
use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, vipl_region};
use vipl_plugin_sdk::{Host, Status};
use vipl_sys::fd::Kept;
use vipl_sys::mutex::Mutex;
use vipl_sys::shm::Mapping;
use zerocopy::{FromBytes, IntoBytes};

use crate::NAME;
use crate::interface::Interface;

/// How long a device may take to answer. It asks nobody: one that takes its time has no processor. Of one that has
/// ended the socket tells at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a process that waits looks.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// How long is waited for what can do without the device's word.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// Where the device looks whether it can reach this process.
static PROBE: AtomicU64 = AtomicU64::new(0x636c_616e_2070_726f);

/// One NIC handle's connection to the device.
pub(crate) struct Card {
    socket: Kept,
    /// Number of the last call; held from the request to its reply.
    calls: Mutex<u32>,
    nic: Mapping,
    page: Mapping,
    /// The sleep of the device that this process has ended last.
    woken: AtomicU32,
    /// This process must fence itself before it looks whether the device sleeps.
    fences: bool,
}

fn error(text: &str) {
    Host::get().log(VIPL_LOG_ERROR, &format!("clan: {text}"));
}

/// Sends a packet; waits for a device that is behind with reading.
fn put(socket: &Kept, request: &Request, fds: &[RawFd]) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        match channel::send(socket.fd()?, request.as_bytes(), fds) {
            Err(full) if full.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                vipl_sys::clock::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Whether a call failed because the device has ended; otherwise it is only slow.
fn has_ended(why: &io::Error) -> bool {
    !matches!(
        why.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

/// What is left of the time that somebody waits.
struct Left(Duration);

impl Left {
    /// So long ago the waiting process has looked before. More than two such times it has not been running.
    fn pass(&mut self, since: Duration) {
        self.0 = self.0.saturating_sub(since.min(2 * CHECK_EVERY));
    }
}

/// Waits for the reply with this number; replies that came too late for their callers are dropped. Time in which this
/// process did not run does not count: the device may not have run either.
fn get(socket: &Kept, number: u32, time: Duration) -> io::Result<(Reply, Vec<OwnedFd>)> {
    let mut left = Left(time);
    let mut looked = Instant::now();
    loop {
        let arrived = channel::wait(socket.fd()?, left.0.min(CHECK_EVERY));
        if !arrived && left.0.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let now = Instant::now();
        left.pass(now - looked);
        looked = now;
        let mut packet = [0; size_of::<Reply>()];
        match channel::receive(socket.fd()?, &mut packet) {
            Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok((bytes, fds)) => match Reply::read_from_bytes(&packet[..bytes]) {
                Ok(reply) if reply.number == number => return Ok((reply, fds)),
                _ => {}
            },
            Err(none) if none.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Lets the device, which is no relative of this process, touch its memory, where the kernel's ptrace scope
/// asks for that (Yama). Elsewhere it does nothing.
fn admit(device: u32) {
    const PR_SET_PTRACER: libc::c_int = 0x5961_6d61;
    // SAFETY: no pointers.
    unsafe { libc::prctl(PR_SET_PTRACER, libc::c_ulong::from(device), 0, 0, 0) };
}

/// Why the device could not be opened.
enum Failure {
    /// The connection to it has broken.
    Broken(io::Error),
    /// Another reason, of which the log tells.
    Reported(Status),
}

impl Card {
    /// Opens the device, which also gets the interface, if there is one: the connection, and the socket of its
    /// interrupts.
    pub(crate) fn open(
        poll_us: u32,
        interface: Option<&Interface>,
    ) -> Result<(Card, OwnedFd), Status> {
        let mut opened = Card::try_open(poll_us, interface);
        if matches!(&opened, Err(Failure::Broken(_))) {
            // The device has died since it was told of this process: there is another one now.
            opened = Card::try_open(poll_us, interface);
        }
        opened.map_err(|failure| match failure {
            Failure::Broken(why) => {
                error(&format!("the device does not answer: {why}"));
                Status::Resource
            }
            Failure::Reported(status) => status,
        })
    }

    fn try_open(poll_us: u32, interface: Option<&Interface>) -> Result<(Card, OwnedFd), Failure> {
        let (socket, device) = Host::get().device(NAME).map_err(Failure::Reported)?;
        let socket = Kept::new(socket);
        let mut request = Request {
            op: op::OPEN,
            number: 1,
            vi: VERSION,
            key: PROBE.as_ptr().expose_provenance() as u64,
            max_transfer: PROBE.load(Ordering::Relaxed),
            ptag: poll_us,
            flags: if usize::BITS == 32 { flag::NARROW } else { 0 },
            ..Request::default()
        };
        if let Some(interface) = interface {
            request.mtu = interface.mtu;
            request.address = interface.address;
            request.endpoint = interface.endpoint;
        }
        let data: Vec<RawFd> = interface.iter().map(|one| one.socket.as_raw_fd()).collect();
        let mut ask = |number| {
            request.number = number;
            put(&socket, &request, &data)?;
            get(&socket, number, PATIENCE)
        };
        let (mut reply, mut fds) = ask(1).map_err(Failure::Broken)?;
        if reply.status == status::NOT_PERMITTED {
            admit(device);
            (reply, fds) = ask(2).map_err(Failure::Broken)?;
        }
        match reply.status {
            status::OK => Card::map(socket, &fds).map_err(|why| {
                error(&format!("cannot map the pages of the device: {why}"));
                Failure::Reported(Status::Resource)
            }),
            status::NOT_PERMITTED => {
                error(
                    "the kernel does not let the device access the memory of this process: let \
                     kernel.yama.ptrace_scope be 0 or 1, keep the process dumpable, and run vipkad \
                     and program as one user in one PID namespace",
                );
                Err(Failure::Reported(Status::NotPermitted))
            }
            status::INVALID if reply.version != VERSION => {
                error("the device has another version; stop all programs that use it");
                Err(Failure::Reported(Status::Resource))
            }
            _ => {
                let why = io::Error::from_raw_os_error(reply.errno as i32);
                error(&format!("the device cannot be opened: {why}"));
                Err(Failure::Reported(Status::Resource))
            }
        }
    }

    fn map(socket: Kept, fds: &[OwnedFd]) -> io::Result<(Card, OwnedFd)> {
        let [nic, page, interrupts] = fds else {
            return Err(io::Error::other("three descriptors were expected"));
        };
        let mut card = Card {
            socket,
            calls: Mutex::new(2),
            nic: Mapping::open(nic.as_raw_fd(), NIC_BYTES, true)?,
            page: Mapping::open(page.as_raw_fd(), DEVICE_BYTES, false)?,
            woken: AtomicU32::new(0),
            fences: false,
        };
        let bell = &card.nic().bell;
        bell.prepare();
        card.fences = bell.needs_fences();
        Ok((card, interrupts.try_clone()?))
    }

    /// The socket, for the thread that waits for its end.
    pub(crate) fn socket(&self) -> &Kept {
        &self.socket
    }

    #[inline(always)]
    pub(crate) fn nic(&self) -> &NicPage {
        // SAFETY: the mapping begins with a page of zeroes at first, which is valid, and all atomic.
        unsafe { &*self.nic.base().cast::<NicPage>() }
    }

    #[inline(always)]
    pub(crate) fn page(&self) -> &DevicePage {
        // SAFETY: as above.
        unsafe { &*self.page.base().cast::<DevicePage>() }
    }

    /// The table of regions, which the device reads.
    pub(crate) fn regions(&self) -> &[vipl_region] {
        let first = self.nic.base().cast_const().wrapping_add(REGIONS_AT).cast();
        // SAFETY: the mapping has so many, and each of their words is atomic.
        unsafe { std::slice::from_raw_parts(first, REGIONS_MAX as usize) }
    }

    /// The device has something on its doorbells. Costs a load while it is awake.
    #[inline(always)]
    pub(crate) fn kick(&self) {
        self.page().after_publishing(self.fences);
        let asleep = self.page().asleep.load(Ordering::Relaxed);
        if asleep & 1 != 0 {
            self.wake(asleep);
        }
    }

    #[cold]
    fn wake(&self, asleep: u32) {
        if self.woken.swap(asleep, Ordering::SeqCst) == asleep {
            return;
        }
        // SAFETY: no arguments. Without an answer it is the number of no processor.
        let cpu = unsafe { libc::sched_getcpu() };
        let request = Request {
            op: op::WAKE,
            vi: cpu as u32,
            ..Request::default()
        };
        // Without room there are packets that the device has not read: they wake it, too.
        if let Ok(socket) = self.socket.fd() {
            let _ = channel::send(socket, request.as_bytes(), &[]);
        }
    }

    /// Says something that has no answer.
    pub(crate) fn send(&self, request: &Request) -> io::Result<()> {
        put(&self.socket, request, &[])?;
        self.nic().messages.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn call(&self, mut request: Request, time: Duration) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let mut number = self.calls.lock();
        *number = number.wrapping_add(1);
        request.number = *number;
        self.send(&request)?;
        get(&self.socket, request.number, time)
    }

    /// Makes the pages of a VI.
    pub(crate) fn create(&self, vi: u32) -> Result<Mapping, Status> {
        let request = Request {
            op: op::CREATE,
            vi,
            ..Request::default()
        };
        let made = self.call(request, PATIENCE).and_then(|(reply, fds)| {
            let fd = fds.first().filter(|_| reply.status == status::OK);
            let fd = fd.ok_or_else(|| io::Error::from_raw_os_error(reply.errno as i32))?;
            Mapping::open(fd.as_raw_fd(), VI_BYTES, true)
        });
        made.map_err(|why| {
            error(&format!("the device cannot make a VI: {why}"));
            Status::Resource
        })
    }

    /// Takes a VI off its connection: afterwards the device touches nothing of it. False: it has not said so in
    /// this time, or has no room for the question.
    pub(crate) fn detach(&self, vi: u32, time: Duration) -> bool {
        let request = Request {
            op: op::DETACH,
            vi,
            ..Request::default()
        };
        // A device that has ended touches nothing, either; one that is slow may.
        self.call(request, time)
            .map_or_else(|why| has_ended(&why), |_| true)
    }

    /// What the VI has on offer is taken back. False: not yet, ask again.
    pub(crate) fn recall(&self, vi: u32, time: Duration) -> bool {
        let request = Request {
            op: op::RECALL,
            vi,
            ..Request::default()
        };
        self.call(request, time).map_or_else(
            |why| has_ended(&why),
            |(reply, _)| reply.status != status::BUSY,
        )
    }

    /// The peer on another host has gone: afterwards the device has said what that means for the VI.
    /// A device that has no time for it is not waited for.
    pub(crate) fn peer_gone(&self, request: Request) {
        let _ = self.call(request, SHORT);
    }

    /// Whether the device may still use regions that left the table before the first call, which is the one
    /// with 0.
    pub(crate) fn is_in_round(&self, since: &mut u64) -> bool {
        // The device's fence between announcing a round and looking at the table.
        self.page().before_looking_again();
        let round = self.page().round.load(Ordering::SeqCst);
        if *since == 0 && round & 1 != 0 {
            *since = u64::from(round);
        }
        *since != 0 && *since == u64::from(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_processor_is_no_wait() {
        let mut left = Left(PATIENCE);
        left.pass(2 * PATIENCE);
        assert_eq!(left.0, PATIENCE - 2 * CHECK_EVERY);
        for _ in 0..240 {
            left.pass(CHECK_EVERY);
        }
        assert!(left.0.is_zero(), "a device that says nothing for a minute");
    }

    #[test]
    fn a_device_that_says_nothing_has_not_ended() {
        let (near, far) = channel::pair().expect("a pair");
        let near = Kept::new(near);
        let silent = get(&near, 1, Duration::from_millis(1)).expect_err("no answer");
        assert!(!has_ended(&silent), "{silent}");
        drop(far);
        let gone = get(&near, 1, PATIENCE).expect_err("no answer");
        assert!(has_ended(&gone), "{gone}");
        let request = Request::default();
        let gone = put(&near, &request, &[]).expect_err("nobody hears it");
        assert!(has_ended(&gone), "{gone}");
    }
}

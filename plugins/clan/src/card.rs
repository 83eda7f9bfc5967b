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

/// How long a device may take to reply. It asks no other process, so a slow one has no processor. The end of the device
/// shows on the socket at once.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How often a waiting process checks the socket.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// How long to wait for replies that are not essential.
pub(crate) const SHORT: Duration = Duration::from_secs(1);

/// The word that the device reads to check whether it can access this process.
static PROBE: AtomicU64 = AtomicU64::new(0x636c_616e_2070_726f);

/// One NIC handle's connection to the device.
pub(crate) struct Card {
    socket: Kept,
    /// Number of the last request; held from the request to its reply.
    calls: Mutex<u32>,
    nic: Mapping,
    page: Mapping,
    /// The sleep of the device that this process has last ended.
    woken: AtomicU32,
    /// This process must execute its own fences before it checks whether the device sleeps.
    fences: bool,
}

fn error(text: &str) {
    Host::get().log(VIPL_LOG_ERROR, &format!("clan: {text}"));
}

/// Sends a packet; waits while the socket is full.
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

/// Whether a request failed because the device has exited; otherwise the device is only slow.
fn has_ended(why: &io::Error) -> bool {
    !matches!(
        why.kind(),
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
    )
}

/// The rest of a wait.
struct Left(Duration);

impl Left {
    /// The process last checked so long ago. Anything beyond two intervals it was not running.
    fn pass(&mut self, since: Duration) {
        self.0 = self.0.saturating_sub(since.min(2 * CHECK_EVERY));
    }
}

/// Waits for the reply with this number; drops replies to earlier requests. Time in which this process did not run does
/// not count: the device may not have run either.
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

/// Permits the device, which is not related to this process, to access its memory, where the kernel's ptrace scope
/// requires that (Yama). Elsewhere it has no effect.
fn admit(device: u32) {
    const PR_SET_PTRACER: libc::c_int = 0x5961_6d61;
    // SAFETY: no pointers.
    unsafe { libc::prctl(PR_SET_PTRACER, libc::c_ulong::from(device), 0, 0, 0) };
}

/// Why the device could not be opened.
enum Failure {
    /// The connection to it has broken.
    Broken(io::Error),
    /// Another reason, which has been logged.
    Reported(Status),
}

impl Card {
    /// Opens the device, with an interface if there is one. Returns the connection, and the socket of its interrupts.
    pub(crate) fn open(
        poll_us: u32,
        interface: Option<&Interface>,
    ) -> Result<(Card, OwnedFd), Status> {
        let mut opened = Card::try_open(poll_us, interface);
        if matches!(&opened, Err(Failure::Broken(_))) {
            // The device has exited since it was informed of this process, and there is a new one.
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

    /// A doorbell has been rung. Costs a load while the device is awake.
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
        // If there is no room, the device has packets to read, which wake it, too.
        if let Ok(socket) = self.socket.fd() {
            let _ = channel::send(socket, request.as_bytes(), &[]);
        }
    }

    /// Sends a request without a reply.
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

    /// Creates the pages of a VI.
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

    /// Takes a VI off its connection: afterwards the device accesses nothing of it. False: the device has not confirmed
    /// that in time, or has no room for the request.
    pub(crate) fn detach(&self, vi: u32, time: Duration) -> bool {
        let request = Request {
            op: op::DETACH,
            vi,
            ..Request::default()
        };
        // A device that has exited accesses nothing; a slow one may.
        self.call(request, time)
            .map_or_else(|why| has_ended(&why), |_| true)
    }

    /// Takes back the offers of the VI. False: not yet, repeat the request.
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

    /// The peer on another host has exited or disconnected. Returns after the device has handled that, or is too slow.
    pub(crate) fn peer_gone(&self, request: Request) {
        let _ = self.call(request, SHORT);
    }

    /// Whether the device may still use regions that left the table before the first call, in which `since` is 0.
    pub(crate) fn is_in_round(&self, since: &mut u64) -> bool {
        // Pairs with the device's fence between announcing a round and reading the table.
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
        let gone = put(&near, &request, &[]).expect_err("the other end is closed");
        assert!(has_ended(&gone), "{gone}");
    }
}

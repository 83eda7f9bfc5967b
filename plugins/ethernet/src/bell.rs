//! Sleeping and waking of the threads that wait on a NIC, and which of its VIs have something to do.
//!
//! A thread can be woken by a frame (the socket), by a peer on this host, or by another thread of this process. One
//! sleeper *leads*: it waits in `ppoll` for the socket and for an eventfd. The others sleep on the futex word of the
//! shared page. A ring wakes them, and so does the leader when it leaves. Peers on this host have the page and the
//! eventfd, and ring like threads of this process.
//!
//! ```text
//!   line 0   ring     counts rings; a futex
//!   line 1   want     sleepers; leading: 1 while a thread waits in ppoll
//!   line 2…  ready    one bit per VI
//! ```
//!
//! A sleeper announces itself in `want` and polls once more; a publisher stores its data and then reads `want`. Both
//! have a full fence in between, so one of the two sees the other. What peers write here is hostile input: at worst it
//! wakes a thread for nothing, or leaves one asleep until the watch thread polls.

use std::mem::offset_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use vipl_plugin_sdk::futex;
use vipl_plugin_sdk::shm::{Kept, Mapping, made};
use vipl_sys::bell::Marks;
use vipl_sys::clock;

use crate::VIS_MAX;

/// Size of the shared page.
pub(crate) const BELL_BYTES: usize = 4096;

/// How long a leader sleeps if the application has closed its eventfd, in nanoseconds.
const NO_EVENT_NS: u64 = 10_000_000;

/// The content of the page; zeroes are a valid one. Peers can write to all of it, so the padding is atomic, too.
#[repr(C, align(64))]
struct Page {
    ring: AtomicU32,
    pad0: [AtomicU32; 15],
    want: AtomicU32,
    leading: AtomicU32,
    pad1: [AtomicU32; 14],
    ready: Marks<{ VIS_MAX as usize / 64 }>,
}

const _: () = assert!(size_of::<Page>() <= BELL_BYTES && offset_of!(Page, ready) == 128);

/// The bell of this process's NIC, or of a peer's NIC on this host.
pub(crate) struct Bell {
    page: Mapping,
    event: Kept,
    /// A thread leads. The word in the page is for peers, which could change it.
    led: AtomicBool,
}

/// Creates a non-blocking eventfd.
pub(crate) fn create_event() -> std::io::Result<OwnedFd> {
    // SAFETY: a system call; the descriptor is new.
    unsafe { made(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}

impl Bell {
    pub(crate) fn open(page: RawFd, event: OwnedFd) -> std::io::Result<Bell> {
        // A peer could have passed a descriptor that blocks its writers.
        // SAFETY: a system call on a descriptor of our own.
        unsafe { libc::fcntl(event.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        Ok(Bell {
            page: Mapping::open(page, BELL_BYTES, true)?,
            event: Kept::new(event),
            led: AtomicBool::new(false),
        })
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping has room for a Page, which is all atomic; zeroes are a valid one.
        unsafe { &*self.page.base().cast::<Page>() }
    }

    /// Sets the ready bit of a VI of the owner: its `progress` may find something.
    pub(crate) fn mark(&self, index: u32) {
        self.page().ready.set(index);
    }

    /// Takes ready VIs and clears their bits, as many as there is room for, of the first `words` words.
    pub(crate) fn take_marks(&self, words: usize, indices: &mut [u32]) -> usize {
        self.page().ready.take(words, indices)
    }

    /// Wakes the sleepers of the owner, if there are any. Called after data was published.
    pub(crate) fn ring_if_wanted(&self) {
        fence(Ordering::SeqCst);
        if self.page().want.load(Ordering::Relaxed) != 0 {
            self.ring();
        }
    }

    /// Wakes all sleepers.
    #[cold]
    pub(crate) fn ring(&self) {
        self.page().ring.fetch_add(1, Ordering::SeqCst);
        futex::wake(&self.page().ring);
        if self.page().leading.load(Ordering::SeqCst) != 0 {
            self.kick_leader();
        }
    }

    /// Ends the leader's `ppoll`.
    pub(crate) fn kick_leader(&self) {
        let one = 1u64;
        if let Ok(event) = self.event.fd() {
            // SAFETY: eight bytes; a full counter wakes as well.
            unsafe { vipl_sys::uncancelled::write(event, (&raw const one).cast(), 8) };
        }
    }

    /// Announces a sleeper of the owner. Returns the `epoch` for [`Bell::sleep`].
    pub(crate) fn arm(&self) -> u32 {
        let epoch = self.page().ring.load(Ordering::SeqCst);
        self.page().want.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        epoch
    }

    /// Withdraws the announcement.
    pub(crate) fn disarm(&self) {
        self.page().want.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until the bell has been rung since `arm`, or a frame has arrived. The caller leads if no other thread
    /// does.
    pub(crate) fn sleep(&self, epoch: u32, timeout_ns: u64, sockets: [Option<RawFd>; 2]) {
        if self.led.swap(true, Ordering::SeqCst) {
            futex::wait(&self.page().ring, epoch, timeout_ns);
            return;
        }
        self.page().leading.store(1, Ordering::SeqCst);
        // A ringer increments `ring` before it reads `leading`.
        if self.page().ring.load(Ordering::SeqCst) == epoch {
            self.poll(timeout_ns, sockets);
        }
        self.page().leading.store(0, Ordering::SeqCst);
        self.led.store(false, Ordering::SeqCst);
        // The others poll, and one of them leads.
        if self.page().want.load(Ordering::SeqCst) > 1 {
            self.page().ring.fetch_add(1, Ordering::SeqCst);
            futex::wake(&self.page().ring);
        }
    }

    /// Whether a thread leads.
    pub(crate) fn is_led(&self) -> bool {
        self.led.load(Ordering::SeqCst)
    }

    fn poll(&self, timeout_ns: u64, sockets: [Option<RawFd>; 2]) {
        let wants = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // `ppoll` ignores negative descriptors.
        let event = self.event.fd().unwrap_or(-1);
        let [data, trains] = sockets.map(|socket| wants(socket.unwrap_or(-1)));
        let mut fds = [wants(event), data, trains];
        // Without an eventfd no thread can end the sleep of a leader.
        let time = clock::limit(if event < 0 {
            timeout_ns.min(NO_EVENT_NS)
        } else {
            timeout_ns
        });
        if clock::poll(&mut fds, time) <= 0 {
            return;
        }
        if fds[0].revents != 0 {
            let mut count = 0u64;
            // SAFETY: eight bytes of room; only the leader reads.
            unsafe { vipl_sys::uncancelled::read(event, (&raw mut count).cast(), 8) };
        }
        for socket in &fds[1..] {
            if socket.revents & libc::POLLERR != 0 {
                // An interface that has gone down reports this until it has been read.
                let _ = vipl_netio::packet::take_socket_error(socket.fd);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use vipl_plugin_sdk::shm;

    fn bell() -> Bell {
        let page = shm::create(c"vipl-test", BELL_BYTES).unwrap();
        Bell::open(page.as_raw_fd(), create_event().unwrap()).unwrap()
    }

    #[test]
    fn a_ring_after_arm_ends_the_sleep() {
        let bell = bell();
        for _ in 0..100 {
            let epoch = bell.arm();
            bell.ring_if_wanted();
            bell.sleep(epoch, u64::MAX, [None; 2]);
            bell.disarm();
        }
    }

    /// Every sleeper is woken by one ring, whether it leads or not, thousands of times.
    #[test]
    fn a_ring_wakes_leader_and_followers() {
        const ROUNDS: u32 = 2000;
        let bell = Arc::new(bell());
        let round = Arc::new(AtomicU32::new(0));
        let seen = Arc::new(AtomicU32::new(0));
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                let (bell, round, seen) = (bell.clone(), round.clone(), seen.clone());
                std::thread::spawn(move || {
                    for wanted in 1..=ROUNDS {
                        while round.load(Ordering::SeqCst) < wanted {
                            let epoch = bell.arm();
                            if round.load(Ordering::SeqCst) < wanted {
                                bell.sleep(epoch, u64::MAX, [None; 2]);
                            }
                            bell.disarm();
                        }
                        seen.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for number in 1..=ROUNDS {
            round.store(number, Ordering::SeqCst);
            bell.ring_if_wanted();
            while seen.load(Ordering::SeqCst) < 3 * number {
                std::thread::yield_now();
            }
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }

    /// The counter wraps; nothing depends on its sign.
    #[test]
    fn sleeping_works_across_the_end_of_the_counter() {
        let bell = bell();
        bell.page().ring.store(u32::MAX - 1, Ordering::SeqCst);
        for _ in 0..4 {
            let epoch = bell.arm();
            bell.ring();
            bell.sleep(epoch, u64::MAX, [None; 2]);
            bell.disarm();
        }
        assert_eq!(bell.page().ring.load(Ordering::SeqCst), 2);
    }
}

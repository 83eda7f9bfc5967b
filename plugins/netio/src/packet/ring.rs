//! The receive ring: frames that the kernel writes into memory shared with this process (TPACKET_V2).
//!
//! A poll for a frame costs one load and no system call, and each frame is visible as soon as it has arrived.
//! TPACKET_V3 passes whole blocks when a timer expires, which adds latency.

use std::io;
use std::marker::PhantomData;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::{Received, options};

/// Block of the receive ring in bytes.
const BLOCK: usize = 64 << 10;
/// Bytes of a slot beyond the frame's payload: the kernel's header and the Ethernet header.
const OVERHEAD: usize = 128;

/// The receive ring of a socket, used by one thread at a time.
pub struct Receiver {
    socket: RawFd,
    ring: *mut u8,
    bytes: usize,
    frame_bytes: usize,
    /// A power of two.
    frames: usize,
    next: usize,
}

// SAFETY: the mapping is bound to no thread, and all use is through `&mut`.
unsafe impl Send for Receiver {}

/// The status word of the slot in which the next frame arrives. Any thread may read it, also while another thread uses
/// the receiver.
pub struct Tip(AtomicPtr<u32>);

impl Tip {
    /// The tip of a receiver, which must outlive it.
    pub fn new(receiver: &Receiver) -> Tip {
        Tip(AtomicPtr::new(receiver.status()))
    }

    /// Follows the receiver, after it has taken frames.
    #[inline]
    pub fn follow(&self, receiver: &Receiver) {
        self.0.store(receiver.status(), Ordering::Release);
    }

    /// Whether a frame is waiting. If so, prefetches its first cache lines, which another processor has written.
    /// Another thread may already have taken the frame; that is harmless.
    #[inline(always)]
    pub fn has_frame(&self) -> bool {
        let place = self.0.load(Ordering::Acquire);
        // SAFETY: a word of the ring, which stays mapped; the kernel writes it, so it is an atomic one.
        let status = unsafe { AtomicU32::from_ptr(place) };
        let waiting = status.load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        if waiting {
            // A small frame occupies the three lines after the first line of its slot.
            for line in 1..=3 {
                prefetch(place.wrapping_byte_add(64 * line).cast());
            }
        }
        waiting
    }
}

/// Prefetches the cache line at this address.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// A frame in its slot of the ring, Ethernet header included. Another process that has mapped the ring can write to it
/// at any time, so this holds no reference to it.
pub struct Arrived<'a> {
    at: *const u8,
    length: usize,
    ring: PhantomData<&'a Receiver>,
}

impl Arrived<'_> {
    /// Replaces the content of `out` with a copy of the frame.
    #[inline(always)]
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(self.length);
        // SAFETY: the frame lies inside its slot, and `out` has room for it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at, out.as_mut_ptr(), self.length);
            out.set_len(self.length);
        }
    }

    /// The frame in its place.
    ///
    /// # Safety
    /// No other process writes to the ring.
    #[inline(always)]
    pub unsafe fn in_place(&self) -> &[u8] {
        // SAFETY: inside its slot, which the kernel does not touch before the slot is returned; by contract, no other
        // process does.
        unsafe { std::slice::from_raw_parts(self.at, self.length) }
    }
}

/// A filled slot.
pub(super) struct Slot {
    /// Its status word.
    pub(super) word: u32,
    /// The slot, and where in it the frame begins.
    at: *const u8,
    start: usize,
    length: usize,
    /// The frame is in the slot to its end.
    pub(super) is_whole: bool,
}

impl Slot {
    /// The frame.
    #[inline(always)]
    fn frame(&self) -> Arrived<'_> {
        Arrived {
            at: self.at.wrapping_add(self.start),
            length: self.length,
            ring: PhantomData,
        }
    }

    /// The frame, after so many bytes that the kernel has written before it.
    #[inline(always)]
    pub(super) fn frame_after(&self, before: usize) -> Option<Arrived<'_>> {
        let start = self.start.checked_sub(before)?;
        Some(Arrived {
            at: self.at.wrapping_add(start),
            length: self.length + before,
            ring: PhantomData,
        })
    }
}

/// Bytes of one slot, and of the whole ring.
fn shape(mtu: usize, frames: usize) -> io::Result<(usize, usize)> {
    let frame_bytes = (mtu + OVERHEAD).next_power_of_two().clamp(2048, BLOCK);
    let bytes = frames * frame_bytes;
    if !bytes.is_multiple_of(BLOCK) || !frames.is_power_of_two() {
        return Err(io::Error::other(
            "the receive ring has a fractional block, or its frames are no power of two",
        ));
    }
    Ok((frame_bytes, bytes))
}

impl Receiver {
    /// Creates the ring and maps it: `frames` frames, a power of two, with payloads up to `mtu` bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(socket: RawFd, mtu: usize, frames: usize) -> io::Result<Receiver> {
        Receiver::prepare(socket, mtu, frames)?;
        Receiver::map(socket, mtu, frames)
    }

    /// Creates the ring without mapping it; this takes the kernel some milliseconds.
    ///
    /// # Errors
    /// The kernel's.
    pub fn prepare(socket: RawFd, mtu: usize, frames: usize) -> io::Result<()> {
        let (frame_bytes, bytes) = shape(mtu, frames)?;
        // A kernel without this option also delivers our own frames, which the filter drops: they have another
        // endpoint.
        let _ = options::set(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            &1i32,
        );
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        options::set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: (bytes / BLOCK) as u32,
            tp_frame_size: frame_bytes as u32,
            tp_frame_nr: frames as u32,
        };
        options::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    }

    /// Maps a ring that was created with the same `mtu` and `frames`, possibly by another process.
    ///
    /// # Errors
    /// The descriptor is no AF_PACKET socket, or has no such ring.
    pub fn map(socket: RawFd, mtu: usize, frames: usize) -> io::Result<Receiver> {
        let (frame_bytes, bytes) = shape(mtu, frames)?;
        // A mapping of any other kind of descriptor could be truncated while it is in use.
        // SAFETY: an integer.
        let domain: i32 = unsafe { options::get(socket, libc::SOL_SOCKET, libc::SO_DOMAIN) }?;
        if domain != libc::AF_PACKET {
            return Err(io::Error::from_raw_os_error(libc::EPROTOTYPE));
        }
        // SAFETY: a new mapping. The kernel maps the whole ring or nothing, and never truncates it.
        let ring = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let ring = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                socket,
                0,
            );
            if ring == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            libc::madvise(ring, bytes, libc::MADV_DONTFORK);
            ring.cast::<u8>()
        };
        Ok(Receiver {
            socket,
            ring,
            bytes,
            frame_bytes,
            frames,
            next: 0,
        })
    }

    /// Status word of the slot in which the next frame arrives.
    #[inline]
    fn status(&self) -> *mut u32 {
        self.slot(self.next).cast()
    }

    #[inline(always)]
    fn slot(&self, number: usize) -> *mut u8 {
        self.ring.wrapping_add(number * self.frame_bytes)
    }

    /// Passes the next slot to `each`, if it is filled, and returns it to the kernel. Returns whether it was.
    #[inline(always)]
    pub(super) fn take_slot(&mut self, each: impl FnOnce(&Slot)) -> bool {
        let header = self.slot(self.next).cast::<libc::tpacket2_hdr>();
        // SAFETY: inside the ring; the kernel writes the word, so it is accessed atomically.
        let status = unsafe { AtomicU32::from_ptr(&raw mut (*header).tp_status) };
        // Acquire pairs with the kernel's barrier before it sets the word: the frame is visible.
        let word = status.load(Ordering::Acquire);
        if word & libc::TP_STATUS_USER == 0 {
            return false;
        }
        let next = (self.next + 1) & (self.frames - 1);
        // The next status word is in another processor's cache: fetch it while this frame is processed.
        prefetch(self.slot(next));
        // Another process that has mapped the ring can write anything into the header at any time: each field is
        // read once, and the range is clamped to the slot.
        // SAFETY: inside the ring.
        let (length, start, sent) = unsafe {
            (
                (&raw const (*header).tp_snaplen).read_volatile() as usize,
                (&raw const (*header).tp_mac).read_volatile(),
                (&raw const (*header).tp_len).read_volatile() as usize,
            )
        };
        let start = usize::from(start).min(self.frame_bytes);
        let length = length.min(self.frame_bytes - start);
        each(&Slot {
            word,
            at: header.cast::<u8>(),
            start,
            length,
            is_whole: length == sent,
        });
        // Release: the frame has been read before the kernel may use the slot again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = next;
        true
    }

    /// Passes up to `most` frames to `each` in order of arrival.
    pub fn receive(&mut self, most: u32, mut each: impl FnMut(Arrived<'_>)) -> Received {
        let (mut received, mut losing) = (Received::default(), false);
        while received.frames + received.cut < most {
            let taken = self.take_slot(|slot| {
                losing |= slot.word & libc::TP_STATUS_LOSING != 0;
                if slot.is_whole {
                    received.frames += 1;
                    each(slot.frame());
                } else {
                    received.cut += 1;
                }
            });
            if !taken {
                break;
            }
        }
        if losing {
            received.dropped = self.take_drops();
        }
        received
    }

    /// Number of slots.
    #[inline]
    pub fn frames(&self) -> u32 {
        self.frames as u32
    }

    /// Frames that the kernel has dropped since the last call.
    #[cold]
    pub(super) fn take_drops(&self) -> u32 {
        // SAFETY: two counters.
        let stats: io::Result<libc::tpacket_stats> =
            unsafe { options::get(self.socket, libc::SOL_PACKET, libc::PACKET_STATISTICS) };
        stats.map_or(0, |stats| stats.tp_drops)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, unmapped once.
        unsafe { libc::munmap(self.ring.cast(), self.bytes) };
    }
}

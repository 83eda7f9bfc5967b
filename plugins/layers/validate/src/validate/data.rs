//! The calls of the data path: posts, and what is taken off the queues.

use std::sync::atomic::Ordering;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Call, Local, Outcome, read};

use super::Validate;
use crate::findings::Finding;
use crate::objects::{Region, Vi};
use crate::place::{self, shown};
use crate::posted::{Change, Entry, Image, Which};

/// Words of `Local`: a posted descriptor, and one more than the number of the place in `Vi::inside` that is taken.
const POSTED: usize = 0;
const INSIDE: usize = 1;

/// What a call of the data path does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    Post(Which),
    /// The number is that of the argument to which the descriptor is written.
    Take(Which, usize),
}

/// What a function does, if it is one of the data path.
#[inline(always)]
pub(crate) fn does(function: u32) -> Option<Does> {
    Some(match function {
        VIPL_CALL_POST_SEND => Does::Post(Which::Send),
        VIPL_CALL_POST_RECV => Does::Post(Which::Recv),
        VIPL_CALL_SEND_DONE => Does::Take(Which::Send, 1),
        VIPL_CALL_RECV_DONE => Does::Take(Which::Recv, 1),
        VIPL_CALL_SEND_WAIT => Does::Take(Which::Send, 2),
        VIPL_CALL_RECV_WAIT => Does::Take(Which::Recv, 2),
        _ => return None,
    })
}

/// A number of the calling thread.
#[inline(always)]
fn thread() -> usize {
    thread_local! {
        static HERE: u8 = const { 0 };
    }
    HERE.try_with(|here| std::ptr::from_ref(here).addr())
        .unwrap_or(1)
}

fn holds(region: Region, address: u64, bytes: u64) -> bool {
    address >= region.base && address.saturating_add(bytes) <= region.end
}

impl Validate {
    /// A call of the data path begins.
    #[inline]
    pub(crate) fn data_before(&self, call: &Call<'_>, does: Does, local: &mut Local) {
        let Some(vi) = self.objects.vi(call.argument(0)) else {
            return;
        };
        self.enter(call, &vi, does, local);
        match does {
            Does::Post(which) => self.post(call, &vi, which, local),
            Does::Take(which, _) => vi.ask(which),
        }
    }

    /// Two threads in the same half of a queue: M-VIA and hardware of its time need a lock of the program there. Marks are
    /// plain stores, so that two threads may be missed, but a single one is never taken for two.
    #[inline]
    fn enter(&self, call: &Call<'_>, vi: &Vi, does: Does, local: &mut Local) {
        let place = match does {
            Does::Post(which) => 2 * which as usize,
            Does::Take(which, _) => 2 * which as usize + 1,
        };
        let (mark, me) = (&vi.inside[place], thread());
        let other = mark.load(Ordering::Relaxed);
        if other == 0 {
            mark.store(me, Ordering::Relaxed);
            local[INSIDE] = place as u64 + 1;
        } else if other != me {
            self.report(Finding::TwoThreads, place::of(call), || {
                let name = call.name().to_string_lossy();
                format!(
                    "{name} on VI {:#x} while another thread is in the same call: providers of other makers need a lock",
                    vi.handle
                )
            });
        }
    }

    #[inline]
    fn post(&self, call: &Call<'_>, vi: &Vi, which: Which, local: &mut Local) {
        let Some(image) = Image::read(call.argument(1)) else {
            return;
        };
        let memory = call.argument(2) as u32;
        self.check_memory(call, vi, which, &image, memory);
        if which == Which::Send
            && image.immediate() != 0
            && image.control() & VIP_CONTROL_IMMEDIATE == 0
        {
            self.report(Finding::UnflaggedImmediate, place::of(call), || {
                format!(
                    "ImmediateData is {:#x} without VIP_CONTROL_IMMEDIATE: only this library carries it",
                    image.immediate()
                )
            });
        }
        let data = self.findings.wants(Finding::BufferChanged);
        let entry = Entry::new(&image, which, memory, place::given(call), data);
        let Ok(mut queues) = vi.queues.lock() else {
            return;
        };
        let before = queues[which as usize].push(entry);
        drop(queues);
        local[POSTED] = image.at;
        match which {
            Which::Recv => _ = vi.receives.fetch_add(1, Ordering::Relaxed),
            Which::Send if vi.bare.load(Ordering::Relaxed) != 0 => {
                vi.bare.store(0, Ordering::Relaxed);
            }
            Which::Send => {}
        }
        if let Some(before) = before {
            self.report(Finding::PostedTwice, place::of(call), || {
                format!(
                    "descriptor {:#x} of VI {:#x} is posted again before it was taken off the queue; it was posted {}",
                    image.at,
                    vi.handle,
                    shown(before)
                )
            });
        }
    }

    /// Leniencies about memory: the descriptor's own, and receives that reach beyond their region.
    #[inline]
    fn check_memory(&self, call: &Call<'_>, vi: &Vi, which: Which, image: &Image, memory: u32) {
        let bytes = 32 + 16 * u64::from(image.segments());
        let own = self.objects.region(vi.nic, memory);
        if !own.is_some_and(|region| holds(region, image.at, bytes)) {
            self.report(Finding::DescriptorMemory, place::of(call), || {
                format!(
                    "the memory handle {memory:#x} does not cover descriptor {:#x} ({bytes} bytes): the strict mode and hardware refuse it",
                    image.at
                )
            });
        }
        if which == Which::Send {
            return;
        }
        let mut number = 0;
        while let Some((address, handle, length)) = image.segment(number) {
            number += 1;
            let region = self.objects.region(vi.nic, handle);
            if region.is_some_and(|region| !holds(region, address, length.into())) {
                self.report(Finding::ReceiveBeyondRegion, place::of(call), || {
                    format!(
                        "{length} bytes at {address:#x} reach beyond the region {handle:#x}: an error as soon as a message does"
                    )
                });
            }
        }
    }

    /// A call of the data path ends.
    #[inline]
    pub(crate) fn data_after(&self, call: &Call<'_>, does: Does, local: &Local, result: Outcome) {
        let Some(vi) = self.objects.vi(call.argument(0)) else {
            return;
        };
        if local[INSIDE] > 0 {
            vi.inside[local[INSIDE] as usize - 1].store(0, Ordering::Relaxed);
        }
        match does {
            Does::Post(which) if local[POSTED] != 0 && !result.is_success() => {
                if let Ok(mut queues) = vi.queues.lock() {
                    queues[which as usize].take_newest(local[POSTED]);
                }
            }
            Does::Post(_) => {}
            Does::Take(which, out) => {
                if result.has_outputs()
                    && let Some(at @ 1..) = read::<usize>(call.pointer(out))
                {
                    self.taken(call, &vi, which, at as u64);
                }
            }
        }
    }

    #[inline]
    fn taken(&self, call: &Call<'_>, vi: &Vi, which: Which, at: u64) {
        let entry = match vi.queues.lock() {
            Ok(mut queues) => queues[which as usize].take(at),
            Err(_) => return,
        };
        // None: it was posted before this layer saw the VI.
        let (Some(entry), Some(image)) = (entry, Image::read(at)) else {
            return;
        };
        // The place is that of the post: what was wrong with it, or was changed since, is no call.
        let place = || match entry.place {
            0 => place::of(call),
            known => known,
        };
        if which == Which::Recv && vi.bare.load(Ordering::Relaxed) != 0 {
            self.unasked(vi, &image, place);
        }
        let Some(change) = entry.change(&image, which) else {
            return;
        };
        let place = place();
        let handle = vi.handle;
        match change {
            Change::Descriptor => self.report(Finding::DescriptorChanged, place, || {
                format!("descriptor {at:#x} of VI {handle:#x}, posted here, was changed before it was taken off the queue")
            }),
            Change::Buffer => self.report(Finding::BufferChanged, place, || {
                format!(
                    "the buffer of descriptor {at:#x} of VI {handle:#x}, posted here, was changed before the send was taken off the queue"
                )
            }),
        }
    }

    /// A message came to a VI that was connected without a receive and has sent nothing: the peer did not wait.
    #[cold]
    fn unasked(&self, vi: &Vi, image: &Image, place: impl Fn() -> usize) {
        let connected = vi.bare.swap(0, Ordering::Relaxed);
        let status = image.status();
        if connected == 0 || status & VIP_STATUS_DONE == 0 || status & VIP_STATUS_ERROR_MASK != 0 {
            return;
        }
        self.report(Finding::ConnectedWithoutReceives, place(), || {
            format!(
                "VI {:#x} was connected without a receive {}, and its peer sent first: a message that is faster than this VipPostRecv is lost",
                vi.handle,
                shown(connected)
            )
        });
    }
}

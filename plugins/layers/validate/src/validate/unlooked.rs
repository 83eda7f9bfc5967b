//! Messages that no call looks for: a program looks at a completion queue, and they are on a queue that belongs to none.
//!
//! Only calls are known, and Status in the descriptors of the program. So nothing is said that a later call may refute:
//!
//! - A queue counts as long as no call has asked for a descriptor of it or for a notification.
//! - A look that finds nothing, while such a queue has a completed descriptor, is remembered, and told when the VI is destroyed or
//!   the process ends without a call for that queue.
//! - A program that hangs does neither: a thread looks once a second at waits without an end, and at looks that are repeated.

use std::sync::Arc;
use std::time::Duration;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Call, Local, Outcome};
use vipl_sys::clock;
use vipl_sys::thread::spawn_with_signals_blocked;

use super::Validate;
use crate::findings::Finding;
use crate::objects::{Look, Missed, Vi};
use crate::place::{self, shown};
use crate::posted::{Image, Which};

/// Word of `Local` in VipCQWait: whether its begin was noted.
const NOTED: usize = 0;

/// Between two looks of the thread.
const LOOK_NS: u64 = 1_000_000_000;
/// Polls that have found nothing for so long have a place.
const POLLS_NS: u64 = 10_000_000;
/// For so long a program looks at a completion queue, and has a message elsewhere, before a line says so.
const LOOKS_NS: u64 = 3_000_000_000;

impl Validate {
    /// VipCQWait begins.
    pub(crate) fn wait_begins(&self, call: &Call<'_>, local: &mut Local) {
        if !self.objects.has_unasked() || !self.findings.wants(Finding::NotLookedFor) {
            return;
        }
        local[NOTED] = 1;
        let place = place::of(call);
        self.note(call, |look| {
            look.place = place;
            look.inside += 1;
            look.for_ever |= call.argument(1) as VIP_ULONG == VIP_INFINITE;
        });
    }

    /// VipCQWait or VipCQDone ends.
    pub(crate) fn look_ends(&self, call: &Call<'_>, local: &Local, result: Outcome) {
        let is_wait = call.function() == VIPL_CALL_CQ_WAIT;
        match is_wait {
            true if local[NOTED] == 0 => return,
            false if !self.objects.has_unasked() => return,
            _ if !self.findings.wants(Finding::NotLookedFor) => return,
            _ => {}
        }
        let is_fruitless = matches!(
            result.0,
            Some(VIP_RETURN::VIP_NOT_DONE | VIP_RETURN::VIP_TIMEOUT)
        );
        let look = self.note(call, |look| {
            look.inside = look.inside.saturating_sub(u32::from(is_wait));
            look.for_ever &= look.inside > 0;
            match is_fruitless {
                true => look.rounds += 1,
                false => look.begin(look.last_ns),
            }
        });
        let Some(look) = look else {
            return;
        };
        if result.0 == Some(VIP_RETURN::VIP_TIMEOUT) {
            self.missed(&look);
        }
        // Polls are many, and most find something soon: the stack is searched for the place of those that do not.
        if look.place == 0 && look.last_ns.saturating_sub(look.since_ns) >= POLLS_NS {
            let place = place::of(call);
            self.objects.look(look.cq, |look| look.place = place);
        }
    }

    /// Notes a look at a completion queue, and returns what is known of it now.
    fn note(&self, call: &Call<'_>, change: impl FnOnce(&mut Look)) -> Option<Look> {
        let cq = call.argument(0);
        let nic = self.objects.get(cq)?.nic;
        self.wake_watcher();
        self.objects.look(cq, |look| {
            let now = clock::now_ns();
            (look.cq, look.nic) = (cq, nic);
            // After a pause the program begins anew.
            if look.inside == 0 && now.saturating_sub(look.last_ns) > LOOK_NS {
                look.begin(now);
            }
            look.last_ns = now;
            look.function = call.function();
            change(look);
        })
    }

    /// Remembers that a look has found nothing, at VIs with a message elsewhere.
    fn missed(&self, look: &Look) {
        for (vi, which, posted) in self.unlooked(look) {
            let missed = Missed {
                look: *look,
                posted,
            };
            vi.miss(which, missed);
        }
    }

    /// Queues of the same NIC that no call has asked and that have a completed descriptor; where the oldest of each was posted.
    fn unlooked(&self, look: &Look) -> Vec<(Arc<Vi>, Which, usize)> {
        let vis: Vec<_> = self.objects.vis();
        let mut own = vis.iter().filter(|vi| vi.nic == look.nic);
        let may_find = own.any(|vi| vi.has_posted_for(look.cq));
        let own = vis.into_iter().filter(|vi| vi.nic == look.nic);
        own.flat_map(|vi| [Which::Recv, Which::Send].map(|which| (vi.clone(), which)))
            .filter(|(vi, which)| {
                // Sends are taken off when it suits: they count where the completion queue cannot have anything else.
                vi.is_unasked(*which) && (*which == Which::Recv || !may_find)
            })
            .filter_map(|(vi, which)| {
                let posted = completed(&vi, which)?;
                Some((vi, which, posted))
            })
            .collect()
    }

    /// A VI is destroyed, or the process ends: what was missed and not taken since.
    pub(crate) fn report_missed(&self, vi: &Vi) {
        for which in [Which::Recv, Which::Send] {
            if vi.is_unasked(which)
                && let Some(missed) = vi.take_missed(which)
            {
                self.not_looked_for(vi, which, &missed);
            }
        }
    }

    fn not_looked_for(&self, vi: &Vi, which: Which, missed: &Missed) {
        let Missed { look, posted } = missed;
        let (what, queue, take) = match which {
            Which::Recv => ("receive", "receive queue", "VipRecvDone or VipRecvWait"),
            Which::Send => ("send", "send queue", "VipSendDone or VipSendWait"),
        };
        self.report(Finding::NotLookedFor, look.place, || {
            format!(
                "{} looks at completion queue {:#x}, and VI {:#x} has a completed {what}, posted {}, which no call looks for: its {queue} is on no completion queue; name one in VipCreateVi, or call {take}",
                function_name(look.function).to_string_lossy(),
                look.cq,
                vi.handle,
                shown(*posted)
            )
        });
    }

    /// Starts the thread, unless it runs. It ends with the last NIC, as threads of the library do.
    fn wake_watcher(&self) {
        let Ok(mut runs) = self.watcher.lock() else {
            return;
        };
        if std::mem::replace(&mut *runs, true) {
            return;
        }
        // SAFETY: layers of this process are never freed.
        let layer = unsafe { &*std::ptr::from_ref(self) };
        let watch = move || {
            loop {
                clock::sleep(Duration::from_nanos(LOOK_NS));
                layer.watch(clock::now_ns());
                let Ok(mut runs) = layer.watcher.lock() else {
                    return;
                };
                *runs = layer.objects.has_nic();
                if !*runs {
                    return;
                }
            }
        };
        // Without the thread a program that hangs has no line; one that ends does.
        if let Err(error) = spawn_with_signals_blocked("vipl-validate", watch) {
            let name = Finding::NotLookedFor.name();
            self.findings.warn(&format!(
                "validate: no thread: {error}; {name} is found at the end of a VI or of the process only"
            ));
        }
    }

    /// Tells what a program misses that has been looking for a while and will not stop by itself.
    fn watch(&self, now: u64) {
        for look in self.objects.looks() {
            let goes_on = match look.inside {
                0 => now.saturating_sub(look.last_ns) < LOOK_NS,
                _ => look.for_ever || look.rounds > 0,
            };
            for (vi, which, posted) in self.unlooked(&look) {
                let complete_ns = vi.seen_complete(which, now);
                let since = look.since_ns.max(complete_ns);
                if goes_on && now.saturating_sub(since) >= LOOKS_NS {
                    self.not_looked_for(&vi, which, &Missed { look, posted });
                }
            }
        }
    }
}

/// Where the oldest descriptor of a queue was posted, if it is complete and was not flushed.
fn completed(vi: &Vi, which: Which) -> Option<usize> {
    let queues = vi.queues.try_lock().ok()?;
    let oldest = queues[which as usize].entries().next()?;
    let (at, place) = (oldest.at, oldest.place);
    drop(queues);
    const OF_USE: u32 = VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR;
    (Image::read(at)?.status() & OF_USE == VIP_STATUS_DONE).then_some(place)
}

//! What `vipstat` shows: the pages of all processes at one time, and what has changed since the time before.
//!
//! A page has counts; rates come from two looks at them. The age of the oldest descriptor is what this program has seen itself: for
//! how long nothing has been taken off a queue that is not empty.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;

use serde_json::Value;
use vipl_pages::read::{Nic, Sampled, Vi};

use crate::end::{self, End};
use crate::find::{Found, Places, Seen};

/// How an IP address is marked in a NIC's record: `VIPL_ADDRESS_IP` of `vipl_plugin.h`.
pub(crate) const ADDRESS_IP: u64 = 1;

/// What changed in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rates {
    pub(crate) sent: f64,
    pub(crate) received: f64,
    pub(crate) sent_bytes: f64,
    pub(crate) received_bytes: f64,
}

impl Rates {
    fn add(&mut self, other: Rates) {
        self.sent += other.sent;
        self.received += other.received;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
    }
}

/// A NIC handle with what its page does not tell.
#[derive(Clone, Debug)]
pub(crate) struct NicNow {
    pub(crate) page: Nic,
    /// VIs on it.
    pub(crate) vis: usize,
}

/// A VI with what its page does not tell.
#[derive(Clone, Debug)]
pub(crate) struct ViNow {
    pub(crate) page: Vi,
    /// None at the first look.
    pub(crate) rates: Option<Rates>,
    /// What was sampled since the look before; at the first look since the VI exists.
    pub(crate) sampled: Sampled,
    /// Age of the oldest descriptor on each queue, in nanoseconds; at least that.
    pub(crate) send_age: Option<u64>,
    pub(crate) recv_age: Option<u64>,
    /// Whether addresses on its NIC are IP addresses.
    pub(crate) is_ip: bool,
}

/// What all objects of a process have together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) nics: usize,
    /// Also those that are not published.
    pub(crate) vis: u64,
    /// VIs that are connected.
    pub(crate) connected: usize,
    /// None at the first look, and without VIs.
    pub(crate) rates: Option<Rates>,
    /// As of one VI.
    pub(crate) sampled: Sampled,
    /// Descriptors taken off the send queues.
    pub(crate) sent: u64,
    /// Descriptors taken off the receive queues.
    pub(crate) received: u64,
    /// Descriptors that failed, and asynchronous errors.
    pub(crate) errors: u64,
    /// Bytes of registered memory.
    pub(crate) registered: u64,
}

impl Sums {
    fn of(nics: &[NicNow], vis: &[ViNow], left_out: u64) -> Sums {
        let mut sums = Sums {
            nics: nics.len(),
            vis: left_out.wrapping_add(vis.len() as u64),
            connected: vis.iter().filter(|vi| vi.page.state == 1).count(),
            ..Sums::default()
        };
        for vi in vis {
            let (send, recv) = (&vi.page.send, &vi.page.recv);
            sums.sampled.add(&vi.sampled);
            sums.sent = sums.sent.wrapping_add(send.taken);
            sums.received = sums.received.wrapping_add(recv.taken);
            sums.errors = sums
                .errors
                .wrapping_add(send.failed)
                .wrapping_add(recv.failed);
        }
        for NicNow { page, .. } in nics {
            sums.errors = sums.errors.wrapping_add(page.errors);
            sums.registered = sums.registered.wrapping_add(page.region_bytes);
        }
        let rates = |mut sum: Rates, vi: &ViNow| {
            sum.add(vi.rates?);
            Some(sum)
        };
        sums.rates = vis
            .iter()
            .try_fold(Rates::default(), rates)
            .filter(|_| !vis.is_empty());
        sums
    }
}

/// A process.
#[derive(Clone, Debug)]
pub(crate) struct ProcessNow {
    /// Without NICs and VIs, which are in `nics` and `vis`.
    pub(crate) seen: Seen,
    pub(crate) nics: Vec<NicNow>,
    pub(crate) vis: Vec<ViNow>,
    /// Of all that it has, whatever of it a filter shows.
    pub(crate) sums: Sums,
    /// Of a process that does not run, if those were asked for.
    pub(crate) end: Option<End>,
}

impl ProcessNow {
    /// The NIC of a handle.
    pub(crate) fn nic(&self, handle: u64) -> Option<&Nic> {
        let mut nics = self.nics.iter().map(|nic| &nic.page);
        nics.find(|nic| nic.handle == handle)
    }
}

/// Everything at one time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Monotonic, in nanoseconds.
    pub(crate) time: u64,
    pub(crate) processes: Vec<ProcessNow>,
    pub(crate) unreadable: Vec<(PathBuf, String)>,
    /// The agent's budgets, see `vipl_describe`.
    pub(crate) agent: Option<Value>,
    /// The devices of the host.
    pub(crate) devices: Option<Value>,
}

impl Model {
    /// The end of a process that does not run, by its own events and those of all VIs whose last peer it was.
    fn end(&self, process: &ProcessNow) -> End {
        let about = &process.seen.pages.process;
        let recorders = process.seen.recorders();
        let own = process.vis.iter();
        let own = own.map(|vi| end::latest(&recorders.of(&vi.page)));
        let latest = own.fold(about.clock, u64::max);
        let mut losses = Vec::new();
        let others = self.processes.iter();
        for other in others.filter(|other| other.seen.path != process.seen.path) {
            let recorders = other.seen.recorders();
            let vis = other.vis.iter().map(|vi| &vi.page);
            for vi in vis.filter(|vi| vi.peer_pid == about.pid) {
                let times = end::lost(&recorders.of(vi), about.pid).into_iter();
                losses.extend(times.map(|time| (time, other.seen.pid)));
            }
        }
        End::of(about.ended, latest, &losses, self.time)
    }
}

/// What was seen of one queue.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    taken: u64,
    /// Since when `taken` has not changed while the queue was not empty.
    since: Option<u64>,
}

impl Queue {
    fn look(&mut self, taken: u64, depth: u64, time: u64) -> Option<u64> {
        if depth == 0 {
            self.since = None;
        } else if self.taken != taken || self.since.is_none() {
            self.since = Some(time);
        }
        self.taken = taken;
        self.since.map(|since| time.saturating_sub(since))
    }
}

/// What the last look found of a VI.
#[derive(Clone, Debug, Default)]
struct Before {
    time: u64,
    send: Queue,
    recv: Queue,
    sampled: Sampled,
}

/// Looks again and again.
#[derive(Debug)]
pub(crate) struct Sampler {
    places: Places,
    before: HashMap<(PathBuf, u64), Before>,
}

impl Sampler {
    pub(crate) fn new(places: Places) -> Self {
        Self {
            places,
            before: HashMap::new(),
        }
    }

    /// Looks at this time at the processes that run.
    ///
    /// # Errors
    /// The named folder cannot be used.
    pub(crate) fn look(&mut self, time: u64) -> io::Result<Model> {
        let mut found = self.places.look()?;
        found.processes.retain(|seen| seen.runs);
        Ok(self.take(time, found))
    }

    /// Looks at this time at all processes, and finds the ends of those that do not run.
    ///
    /// # Errors
    /// The named folder cannot be used.
    pub(crate) fn all(&mut self, time: u64) -> io::Result<Model> {
        let found = self.places.look()?;
        let mut model = self.take(time, found);
        let end = |process: &ProcessNow| (!process.seen.runs).then(|| model.end(process));
        let ends: Vec<Option<End>> = model.processes.iter().map(end).collect();
        for (process, end) in model.processes.iter_mut().zip(ends) {
            process.end = end;
        }
        Ok(model)
    }

    /// Compares what was found with what was found before.
    pub(crate) fn take(&mut self, time: u64, found: Found) -> Model {
        let mut after = HashMap::new();
        let mut processes = Vec::new();
        for mut seen in found.processes {
            let nics = std::mem::take(&mut seen.pages.nics);
            let is_ip = |handle| {
                let nic = nics.iter().find(|nic| nic.handle == handle);
                nic.is_some_and(|nic| nic.address_form == ADDRESS_IP)
            };
            let pages = std::mem::take(&mut seen.pages.vis).into_iter();
            let vis = pages.map(|page| {
                let name = (seen.path.clone(), page.handle);
                let (now, before) = self.compare(&name, &page, time);
                after.insert(name, before);
                ViNow {
                    is_ip: is_ip(page.nic),
                    page,
                    ..now
                }
            });
            let vis: Vec<ViNow> = vis.collect();
            let nics = nics.into_iter().map(|page| {
                let own = vis.iter().filter(|vi| vi.page.nic == page.handle);
                let vis = own.count();
                NicNow { page, vis }
            });
            let nics: Vec<NicNow> = nics.collect();
            processes.push(ProcessNow {
                sums: Sums::of(&nics, &vis, seen.pages.process.vis_left_out),
                seen,
                nics,
                vis,
                end: None,
            });
        }
        self.before = after;
        Model {
            time,
            processes,
            unreadable: found.unreadable,
            agent: None,
            devices: None,
        }
    }

    fn compare(&self, name: &(PathBuf, u64), page: &Vi, time: u64) -> (ViNow, Before) {
        let known = self.before.get(name);
        let total = page.sampled.as_deref().cloned().unwrap_or_default();
        let sampled = known.map_or_else(|| total.clone(), |known| total.since(&known.sampled));
        let rates = known.map(|known| {
            let seconds = time.saturating_sub(known.time).max(1) as f64 / 1e9;
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
            Rates {
                sent: rate(page.send.taken, known.send.taken),
                received: rate(page.recv.taken, known.recv.taken),
                sent_bytes: rate(sampled.bytes[0], 0),
                received_bytes: rate(sampled.bytes[1], 0),
            }
        });
        let mut before = Before {
            sampled: total,
            ..known.cloned().unwrap_or_default()
        };
        before.time = time;
        let send_age = before.send.look(page.send.taken, page.send.depth(), time);
        let recv_age = before.recv.look(page.recv.taken, page.recv.depth(), time);
        let now = ViNow {
            page: Vi::default(),
            rates,
            sampled,
            send_age,
            recv_age,
            is_ip: false,
        };
        (now, before)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use vipl_pages::Snapshot;
    use vipl_pages::layout::latency_range;
    use vipl_pages::read::{Counted, Cq, Process};

    use super::*;

    fn counted(taken: u64, depth: u64) -> Counted {
        Counted {
            posted: taken + depth,
            taken,
            completed: taken,
            failed: 0,
        }
    }

    /// Messages of 1000 bytes, of which each tenth send took 2 ms and the others 3 µs.
    fn sampled(messages: u64) -> Sampled {
        let mut sampled = Sampled {
            bytes: [1000 * messages, 2000 * messages],
            ..Sampled::default()
        };
        sampled.latency[latency_range(3000)] = messages - messages / 10;
        sampled.latency[latency_range(2_000_000)] = messages / 10;
        sampled
    }

    /// A process with one connected VI that has sent so many messages, and received twice as many.
    pub(crate) fn seen(pid: u64, messages: u64) -> Seen {
        let vi = Vi {
            handle: 0x200_0000 + pid,
            nic: 0x100_0000,
            number: 3,
            state: 1,
            level: 2,
            transfer_max: 65_536,
            connections: 1,
            peer: 1,
            peer_pid: 4712,
            peer_vi: 7,
            send: counted(messages, 2),
            recv: counted(2 * messages, 16),
            sampled: (messages > 0).then(|| sampled(messages).into()),
            ..Vi::default()
        };
        let nic = Nic {
            handle: 0x100_0000,
            plugin: "loopback".to_owned(),
            device: "via_lo".to_owned(),
            address: vec![2, 0x56, 0x49, 0x4c, 0, 0],
            transfer_max: 65_536,
            vis_max: 16_384,
            regions: 2,
            region_bytes: 3 << 20,
            tags: 1,
            ..Nic::default()
        };
        let cq = Cq {
            handle: 0x300_0000,
            nic: 0x100_0000,
            capacity: 128,
            added: 30,
            taken: 25,
            attached: 2,
            ..Cq::default()
        };
        Seen {
            path: PathBuf::from(format!("/run/user/1000/vipl/{pid}-00000000000000ab.pages")),
            user: 1000,
            runs: true,
            pid,
            pages: Snapshot {
                process: Process {
                    pid,
                    user: 1000,
                    version: "0.1.0".to_owned(),
                    program: format!("/opt/app/server{pid}"),
                    ..Process::default()
                },
                nics: vec![nic],
                cqs: vec![cq],
                vis: vec![vi],
                counters: vec![("loopback.ring_copy_bytes".to_owned(), 4096)],
            },
        }
    }

    pub(crate) fn model(samples: &[(u64, Vec<Seen>)]) -> Model {
        let mut sampler = Sampler::new(Places::Usual);
        let mut model = Model::default();
        for (time, processes) in samples {
            let found = Found {
                processes: processes.clone(),
                unreadable: Vec::new(),
            };
            model = sampler.take(*time, found);
        }
        model
    }

    #[test]
    fn two_looks_give_rates() {
        let second = 1_000_000_000;
        let first = model(&[(second, vec![seen(1, 100)])]);
        assert_eq!(first.processes[0].sums.rates, None);
        let both = model(&[
            (second, vec![seen(1, 100)]),
            (3 * second, vec![seen(1, 300)]),
        ]);
        let rates = both.processes[0].sums.rates.unwrap();
        assert_eq!((rates.sent, rates.received), (100.0, 200.0));
        assert_eq!(
            (rates.sent_bytes, rates.received_bytes),
            (100_000.0, 200_000.0)
        );
        // Of the time between the looks.
        let sampled = &both.processes[0].sums.sampled;
        assert_eq!(
            (sampled.count(), first.processes[0].sums.sampled.count()),
            (200, 100)
        );
        assert_eq!(
            latency_range(sampled.quantile(0.5).unwrap()),
            latency_range(3000)
        );
        assert_eq!(both.processes[0].sums.sent, 300);
        // Another process under the same number has another file.
        let mut other = seen(1, 900);
        other.path = PathBuf::from("/other");
        let model = model(&[(second, vec![seen(1, 100)]), (2 * second, vec![other])]);
        assert_eq!(model.processes[0].sums.rates, None);
    }

    #[test]
    fn a_queue_ages_while_nothing_is_taken_off() {
        let mut queue = Queue::default();
        assert_eq!(queue.look(0, 0, 10), None);
        assert_eq!(queue.look(0, 1, 20), Some(0));
        assert_eq!(queue.look(0, 2, 50), Some(30));
        assert_eq!(queue.look(1, 1, 60), Some(0));
        assert_eq!(queue.look(1, 1, 65), Some(5));
        assert_eq!(queue.look(2, 0, 70), None);
        assert_eq!(queue.look(2, 1, 80), Some(0));
    }
}

//! What this process publishes about itself, for `vipstat`: one file in memory, see [`vipl_pages`].
//!
//! Every object with a handle has a record, which is written where the object changes; on the data path by plain stores.
//! Nothing here reads what it has written for any use but to add to it. A process that cannot publish has the same records in
//! memory of its own, so that no path asks which it is.
//!
//! A record belongs to the slot of its handle. The thread that has locked the object writes it.

use std::io::ErrorKind::{QuotaExceeded, StorageFull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use vipl_pages::layout::{
    self, BYTES, COUNTERS, COUNTERS_AT, COUNTS_AT, CQS, CQS_AT, NICS, NICS_AT, SAMPLED_AT, VIS,
    VIS_AT,
};
use vipl_sys::clock::now_ns;
use vipl_sys::table;

use crate::object::handle;
use crate::settings::Settings;
use crate::sync::{Mutex, OnceLock};

mod file;
mod memory;

use file::Published;
use memory::Memory;

/// The records of a process.
pub(crate) struct Pages {
    /// The rings of work queues lie in it, too.
    has_flights: bool,
    bytes: usize,
    memory: Memory,
    file: Option<Published>,
    /// Names of the counters, in the order of their records.
    counters: Mutex<Vec<String>>,
    open_nics: AtomicU32,
    /// The log tells that some records are not seen.
    has_warned: AtomicBool,
}

/// Records for objects beyond the tables: written, and never read.
struct Scratch {
    nic: layout::Nic,
    cq: layout::Cq,
    counts: layout::Counts,
    vi: layout::Vi,
    process: layout::Process,
}

fn scratch() -> &'static Scratch {
    static SCRATCH: OnceLock<Box<[Scratch]>> = OnceLock::new();
    // SAFETY: zeroes are valid for each record.
    &SCRATCH.get_or_init(|| unsafe { table::zeroed(1) })[0]
}

impl Pages {
    /// Publishes this process, unless the setting `publish` forbids it.
    pub(crate) fn new(settings: &Settings) -> Pages {
        let bytes = match settings.flight() {
            true => layout::BYTES_WITH_FLIGHTS,
            false => BYTES,
        };
        let published = Published::new(settings, bytes);
        let (memory, file) = match published {
            Ok((memory, file)) => {
                log::debug!(target: "core", "vipstat sees this process in {}", file.path().display());
                (memory, Some(file))
            }
            Err(why) => {
                let publish = settings.text("publish");
                // What others have filled is no choice of this user.
                let is_full = matches!(why.kind(), StorageFull | QuotaExceeded);
                if !is_full && (matches!(publish, "on" | "off") || settings.secure) {
                    log::debug!(target: "core", "vipstat does not see this process: {why}");
                } else {
                    log::warn!(target: "settings", "publish: {publish}: {why}; vipstat does not see this process");
                }
                (Memory::private(bytes), None)
            }
        };
        let pages = Pages {
            has_flights: settings.flight(),
            bytes,
            memory,
            file,
            counters: Mutex::default(),
            open_nics: AtomicU32::new(0),
            has_warned: AtomicBool::new(false),
        };
        pages.describe();
        pages
    }

    /// Fills the process's own record; the file has content from then on.
    fn describe(&self) {
        let process = self.process();
        let own = std::process::id();
        process.layout.set(layout::LAYOUT);
        process.bytes.set(self.bytes as u64);
        process.pid.set(own);
        process.pid_namespace.set(vipl_pages::life::namespace());
        process
            .start_ticks
            .set(vipl_pages::life::start_ticks(own).unwrap_or(0));
        process.user.set(file::user());
        process.opened.set(now_ns());
        process.clock.set(now_ns());
        process
            .opened_1970
            .set(vipl_sys::clock::since_1970().as_nanos() as u64);
        process.version.set(env!("CARGO_PKG_VERSION").as_bytes());
        if let Ok(program) = std::env::current_exe() {
            process.program.set(program.as_os_str().as_encoded_bytes());
        }
        process.magic.publish(layout::MAGIC);
    }

    fn process(&self) -> &'static layout::Process {
        self.memory.record(0).unwrap_or(&scratch().process)
    }

    /// The time, which it stores.
    pub(crate) fn tick(&self) -> u64 {
        let now = now_ns();
        self.process().clock.set(now);
        now
    }

    /// The record of a new NIC handle.
    pub(crate) fn nic(&self, handle: usize) -> &'static layout::Nic {
        self.open_nics.fetch_add(1, Ordering::Relaxed);
        let slot = slot(handle);
        let record = self.of_table(slot, NICS, NICS_AT);
        if record.is_some() {
            self.process().nic_bound.raise(slot as u64 + 1);
        }
        record.unwrap_or(&scratch().nic)
    }

    /// A NIC handle has been closed.
    pub(crate) fn nic_closed(&self, record: &layout::Nic) {
        self.open_nics.fetch_sub(1, Ordering::Relaxed);
        record.sequence.change(|| record.handle.set(0_u64));
    }

    /// The record of a new CQ.
    pub(crate) fn cq(&self, handle: usize) -> &'static layout::Cq {
        let slot = slot(handle);
        let record = self.of_table(slot, CQS, CQS_AT);
        if record.is_some() {
            self.process().cq_bound.raise(slot as u64 + 1);
        }
        record.unwrap_or(&scratch().cq)
    }

    /// The records of a new VI: the data path's, and the rest. Either both are seen, or none: one alone would tell wrong counts.
    pub(crate) fn vi(&self, handle: usize) -> (&'static layout::Counts, &'static layout::Vi) {
        let slot = slot(handle);
        let counts = self.of_table::<layout::Counts>(slot, VIS, COUNTS_AT);
        let page = match counts {
            // VIs that share a page of the one table share one of the other, so no VI that is seen has its record there.
            Some(counts) if !self.memory.has(counts) => {
                self.memory.hidden(VIS_AT + slot * size_of::<layout::Vi>())
            }
            _ => self.of_table(slot, VIS, VIS_AT),
        };
        let records = counts.zip(page);
        if records.is_some() {
            self.process().vi_bound.raise(slot as u64 + 1);
        }
        let (counts, page) = records.unwrap_or((&scratch().counts, &scratch().vi));
        if !self.memory.has(page) {
            self.process().vis_left_out.add(1);
        }
        (counts, page)
    }

    /// Whether another process can see the records.
    pub(crate) fn is_published(&self) -> bool {
        self.file.is_some()
    }

    /// The record of what is sampled of a VI. `None`: there is none, or no memory, and nothing is said of the VI then.
    pub(crate) fn sampled(&self, handle: usize) -> Option<&'static layout::Sampled> {
        let record = self.of_table(slot(handle), VIS, SAMPLED_AT);
        record.filter(|record| self.memory.has(*record))
    }

    /// Where the ring of a VI's queue lies, if it is recorded; NULL else. The memory stays, and is the slot's.
    pub(crate) fn ring(&self, handle: usize, queue: usize) -> *mut u8 {
        let slot = slot(handle);
        let place = layout::FLIGHTS_AT + slot * size_of::<layout::Flight>();
        let flight = (self.has_flights && slot < VIS)
            .then(|| self.record::<layout::Flight>(place))
            .flatten();
        flight.map_or(std::ptr::null_mut(), |flight| {
            (&raw const flight.rings[queue]).cast_mut().cast()
        })
    }

    /// A VI has been destroyed; its slot is still locked.
    pub(crate) fn vi_destroyed(&self, record: &layout::Vi) {
        if !self.memory.has(record) {
            self.process().vis_left_out.subtract(1);
        }
        record.sequence.change(|| record.clear());
    }

    /// The word of a counter, made if necessary. It is never freed, so its address may be kept. `None`: there is no room.
    pub(crate) fn counter(&self, name: &str) -> Option<&'static AtomicU64> {
        let mut names = self.counters.lock();
        if let Some(place) = names.iter().position(|known| known == name) {
            return self.counter_at(place).map(|counter| counter.value.atomic());
        }
        let counter = self.counter_at(names.len())?;
        counter.name.set(name.as_bytes());
        names.push(name.to_owned());
        self.process().counter_bound.publish(names.len() as u64);
        Some(counter.value.atomic())
    }

    fn counter_at(&self, place: usize) -> Option<&'static layout::Counter> {
        self.of_table(place, COUNTERS, COUNTERS_AT)
    }

    /// Name and value of each counter.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let names = self.counters.lock();
        let counters = names
            .iter()
            .enumerate()
            .filter_map(|(place, name)| Some((name.clone(), self.counter_at(place)?.value.get())));
        counters.collect()
    }

    fn of_table<T>(&self, slot: usize, room: usize, place: usize) -> Option<&'static T> {
        (slot < room).then(|| self.record(place + slot * size_of::<T>()))?
    }

    /// The record at this place. Tells readers and, once, the log of pages that the file could not have.
    fn record<T>(&self, place: usize) -> Option<&'static T> {
        let record = self.memory.record(place);
        let left_out = self.memory.left_out();
        if left_out > 0
            && let Some(file) = &self.file
        {
            self.process().pages_left_out.raise(left_out);
            if !self.has_warned.swap(true, Ordering::Relaxed) {
                let folder = file.path().parent().unwrap_or(file.path()).display();
                log::warn!(target: "settings", "publish: {folder}: it is full; vipstat does not see all of this process");
            }
        }
        record
    }

    /// The process calls `exit`. A file that shows no NIC handle tells nothing more.
    pub(crate) fn end(&self) {
        let Some(file) = &self.file else { return };
        self.process().ended.set(self.tick());
        if self.open_nics.load(Ordering::Relaxed) == 0 {
            file.remove();
        }
    }
}

/// The slot of a handle.
fn slot(handle: usize) -> usize {
    handle::slot(std::ptr::without_provenance_mut(handle))
}

#[cfg(test)]
mod tests;

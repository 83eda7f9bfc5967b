//! The objects of the program: which there are, what they belong to, where they were made.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crate::place::Place;
use crate::posted::{Queue, Which};

/// Handles that have been destroyed and are remembered.
const DESTROYED_MAX: usize = 4096;

/// Kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nic,
    Vi,
    Cq,
    Ptag,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Nic => "the NIC handle",
            Kind::Vi => "the VI",
            Kind::Cq => "the completion queue",
            Kind::Ptag => "the protection tag",
        }
    }
}

/// One object.
#[derive(Clone, Copy)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) nic: u64,
    pub(crate) made: Place,
}

/// A registered region.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) nic: u64,
    pub(crate) handle: u32,
    pub(crate) base: u64,
    pub(crate) end: u64,
    pub(crate) made: Place,
}

/// A VI in use.
pub(crate) struct Vi {
    pub(crate) handle: u64,
    pub(crate) nic: u64,
    /// By `Which`.
    pub(crate) queues: Mutex<[Queue; 2]>,
    /// Threads that post to the queues and take from them: `2 * which`, and one more for taking.
    pub(crate) inside: [AtomicUsize; 4],
    /// Receives posted so far.
    pub(crate) receives: AtomicU64,
    /// Where it was connected, if no receive was posted then and nothing has been sent since; 0 else.
    pub(crate) bare: AtomicUsize,
    /// Completion queues of its queues, or 0.
    cqs: [u64; 2],
    /// A call has looked for descriptors of the queue.
    asked: [AtomicBool; 2],
    /// Queues on no completion queue that no call has asked, of all VIs.
    unasked: Arc<AtomicUsize>,
    /// When the oldest descriptor of an unasked queue was first seen complete; 0: never.
    complete_ns: [AtomicU64; 2],
    missed: [Mutex<Option<Missed>>; 2],
}

impl Vi {
    fn new(handle: u64, nic: u64, cqs: [u64; 2], unasked: &Arc<AtomicUsize>) -> Vi {
        let own = cqs.iter().filter(|cq| **cq == 0).count();
        unasked.fetch_add(own, Ordering::Relaxed);
        Vi {
            handle,
            nic,
            queues: Mutex::default(),
            inside: Default::default(),
            receives: AtomicU64::new(0),
            bare: AtomicUsize::new(0),
            cqs,
            asked: Default::default(),
            unasked: unasked.clone(),
            complete_ns: Default::default(),
            missed: Default::default(),
        }
    }

    /// A call looks for descriptors of a queue, or for a notification.
    #[inline(always)]
    pub(crate) fn ask(&self, which: Which) {
        let asked = &self.asked[which as usize];
        if !asked.load(Ordering::Relaxed)
            && !asked.swap(true, Ordering::Relaxed)
            && self.cqs[which as usize] == 0
        {
            self.unasked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The queue is on no completion queue, and no call has looked for its descriptors.
    pub(crate) fn is_unasked(&self, which: Which) -> bool {
        self.cqs[which as usize] == 0 && !self.asked[which as usize].load(Ordering::Relaxed)
    }

    /// Descriptors are posted whose completion this completion queue will have.
    pub(crate) fn has_posted_for(&self, cq: u64) -> bool {
        let Ok(queues) = self.queues.try_lock() else {
            return true;
        };
        let mut both = self.cqs.iter().zip(queues.iter());
        both.any(|(own, queue)| *own == cq && queue.len() > 0)
    }

    /// The oldest descriptor of an unasked queue is complete; returns since when that is known.
    pub(crate) fn seen_complete(&self, which: Which, now: u64) -> u64 {
        let known = &self.complete_ns[which as usize];
        match known.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => now,
            Err(since) => since,
        }
    }

    /// A look elsewhere has missed a message of the queue; the first one counts.
    pub(crate) fn miss(&self, which: Which, missed: Missed) {
        if let Ok(mut first) = self.missed[which as usize].try_lock() {
            first.get_or_insert(missed);
        }
    }

    /// What was missed.
    pub(crate) fn take_missed(&self, which: Which) -> Option<Missed> {
        self.missed[which as usize].try_lock().ok()?.take()
    }
}

impl Drop for Vi {
    fn drop(&mut self) {
        for which in [Which::Send, Which::Recv] {
            self.ask(which);
        }
    }
}

/// How a program has looked at a completion queue lately.
#[derive(Clone, Copy, Default)]
pub(crate) struct Look {
    pub(crate) cq: u64,
    pub(crate) nic: u64,
    /// Threads in VipCQWait, and whether one of them has no end.
    pub(crate) inside: u32,
    pub(crate) for_ever: bool,
    /// Calls that have found nothing since one has found something.
    pub(crate) rounds: u64,
    /// When the first of them began, and when the last call began or ended.
    pub(crate) since_ns: u64,
    pub(crate) last_ns: u64,
    /// The last one.
    pub(crate) function: u32,
    /// Its place; 0: not known yet.
    pub(crate) place: Place,
}

impl Look {
    /// It begins anew.
    pub(crate) fn begin(&mut self, now: u64) {
        (self.rounds, self.since_ns) = (0, now);
        // Another thread's wait goes on.
        if self.inside == 0 {
            self.place = 0;
        }
    }
}

/// A look that has found nothing while a descriptor, posted at this place, was complete elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Missed {
    pub(crate) look: Look,
    pub(crate) posted: Place,
}

/// All objects.
#[derive(Default)]
pub(crate) struct Objects {
    objects: RwLock<HashMap<u64, Object>>,
    destroyed: Mutex<HashMap<u64, (Kind, Place)>>,
    regions: RwLock<Vec<Region>>,
    vis: RwLock<HashMap<u64, Arc<Vi>>>,
    /// See [`Vi`].
    unasked: Arc<AtomicUsize>,
    /// By completion queue.
    looks: Mutex<HashMap<u64, Look>>,
    /// Counts changes of VIs and regions, so that threads know whether what they remember is true.
    changes: AtomicU64,
}

/// What a thread remembers of its last calls.
#[derive(Default)]
struct Last {
    objects: usize,
    changes: u64,
    vi: Option<Arc<Vi>>,
    region: Option<Region>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

impl Objects {
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Works on what the calling thread remembers.
    #[inline]
    fn last<T>(&self, work: impl FnOnce(&mut Last) -> Option<T>) -> Option<T> {
        let found = LAST.try_with(|last| {
            let mut last = last.try_borrow_mut().ok()?;
            let changes = self.changes.load(Ordering::Acquire);
            let objects = std::ptr::from_ref(self).addr();
            if last.changes != changes || last.objects != objects {
                *last = Last {
                    objects,
                    changes,
                    vi: None,
                    region: None,
                };
            }
            work(&mut last)
        });
        found.ok().flatten()
    }

    /// The VI of this handle. Threads mostly use the same one again.
    #[inline]
    pub(crate) fn vi(&self, handle: u64) -> Option<Arc<Vi>> {
        self.last(|last| {
            if last.vi.as_ref().is_none_or(|vi| vi.handle != handle) {
                last.vi = self.vis.read().ok()?.get(&handle).cloned();
            }
            last.vi.clone()
        })
    }

    /// The region of this handle of a NIC.
    #[inline]
    pub(crate) fn region(&self, nic: u64, handle: u32) -> Option<Region> {
        self.last(|last| {
            if !last
                .region
                .is_some_and(|one| one.handle == handle && one.nic == nic)
            {
                let regions = self.regions.read().ok()?;
                let mut all = regions.iter().copied();
                last.region = all.find(|one| one.handle == handle && one.nic == nic);
            }
            last.region
        })
    }

    pub(crate) fn add(&self, handle: u64, object: Object) {
        if let Ok(mut objects) = self.objects.write() {
            objects.insert(handle, object);
        }
        self.changed();
    }

    /// A VI is made, with these completion queues or 0.
    pub(crate) fn add_vi(&self, handle: u64, object: Object, cqs: [u64; 2]) {
        if let Ok(mut vis) = self.vis.write() {
            let vi = Vi::new(handle, object.nic, cqs, &self.unasked);
            vis.insert(handle, Arc::new(vi));
        }
        self.add(handle, object);
    }

    /// Whether there are queues on no completion queue that no call has asked.
    #[inline]
    pub(crate) fn has_unasked(&self) -> bool {
        self.unasked.load(Ordering::Relaxed) > 0
    }

    /// Changes what is known of looks at a completion queue, and returns it.
    pub(crate) fn look(&self, cq: u64, change: impl FnOnce(&mut Look)) -> Option<Look> {
        let mut looks = self.looks.lock().ok()?;
        let look = looks.entry(cq).or_default();
        change(look);
        Some(*look)
    }

    pub(crate) fn looks(&self) -> Vec<Look> {
        let looks = self.looks.lock();
        looks.iter().flat_map(|all| all.values().copied()).collect()
    }

    /// An object is destroyed, at this place.
    pub(crate) fn remove(&self, handle: u64, place: Place) {
        let gone = self
            .objects
            .write()
            .ok()
            .and_then(|mut all| all.remove(&handle));
        if let Ok(mut vis) = self.vis.write() {
            vis.remove(&handle);
        }
        if let Ok(mut looks) = self.looks.lock() {
            looks.remove(&handle);
        }
        if let (Some(gone), Ok(mut destroyed)) = (gone, self.destroyed.lock()) {
            if destroyed.len() >= DESTROYED_MAX {
                destroyed.clear();
            }
            destroyed.insert(handle, (gone.kind, place));
        }
        self.changed();
    }

    pub(crate) fn get(&self, handle: u64) -> Option<Object> {
        self.objects.read().ok()?.get(&handle).copied()
    }

    /// The kind of a destroyed object, and where that happened.
    pub(crate) fn destroyed(&self, handle: u64) -> Option<(Kind, Place)> {
        self.destroyed.lock().ok()?.get(&handle).copied()
    }

    /// What belongs to a NIC, apart from itself.
    pub(crate) fn of_nic(&self, nic: u64) -> Vec<(u64, Object)> {
        let objects = self.objects.try_read();
        let all = objects.iter().flat_map(|all| all.iter());
        let own = all.filter(|(_, object)| object.nic == nic && object.kind != Kind::Nic);
        own.map(|(handle, object)| (*handle, *object)).collect()
    }

    pub(crate) fn nics(&self) -> Vec<(u64, Object)> {
        let objects = self.objects.try_read();
        let all = objects.iter().flat_map(|all| all.iter());
        all.filter(|(_, object)| object.kind == Kind::Nic)
            .map(|(handle, object)| (*handle, *object))
            .collect()
    }

    /// Whether a NIC is open.
    pub(crate) fn has_nic(&self) -> bool {
        let objects = self.objects.read();
        objects.is_ok_and(|all| all.values().any(|object| object.kind == Kind::Nic))
    }

    pub(crate) fn vis(&self) -> Vec<Arc<Vi>> {
        let vis = self.vis.try_read();
        vis.iter().flat_map(|vis| vis.values().cloned()).collect()
    }

    pub(crate) fn add_region(&self, region: Region) {
        if let Ok(mut regions) = self.regions.write() {
            regions.push(region);
        }
        self.changed();
    }

    pub(crate) fn remove_region(&self, nic: u64, handle: u32) {
        if let Ok(mut regions) = self.regions.write() {
            regions.retain(|one| one.nic != nic || one.handle != handle);
        }
        self.changed();
    }

    pub(crate) fn regions_of(&self, nic: u64) -> Vec<Region> {
        let regions = self.regions.try_read();
        let all = regions.iter().flat_map(|all| all.iter());
        all.filter(|region| region.nic == nic).copied().collect()
    }
}

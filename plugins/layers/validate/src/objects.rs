//! The objects of the program: which there are, what they belong to, where they were made.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crate::place::Place;
use crate::posted::Queue;

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
}

/// All objects.
#[derive(Default)]
pub(crate) struct Objects {
    objects: RwLock<HashMap<u64, Object>>,
    destroyed: Mutex<HashMap<u64, (Kind, Place)>>,
    regions: RwLock<Vec<Region>>,
    vis: RwLock<HashMap<u64, Arc<Vi>>>,
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
        if object.kind == Kind::Vi
            && let Ok(mut vis) = self.vis.write()
        {
            let vi = Vi {
                handle,
                nic: object.nic,
                queues: Mutex::default(),
                inside: Default::default(),
                receives: AtomicU64::new(0),
                bare: AtomicUsize::new(0),
            };
            vis.insert(handle, Arc::new(vi));
        }
        self.changed();
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

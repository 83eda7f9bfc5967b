//! Tables of objects that live behind handles.
//!
//! A slot is never freed: the slot of a destroyed object is reused under another generation. Therefore a
//! stale handle may be used at any time: the lookup locks the slot, finds another name and fails. One thread
//! may destroy an object that another is about to use (rule R4), without a reference count on the data path.
//!
//! Chunks of slots are wiped by a fork: in a child every slot is free, regardless of the parent's objects
//! (spec §10.4).

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::{MaybeUninit, offset_of};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::sync::Mutex;

use crate::object::handle::{self, Kind, Parts};
use crate::object::lock::{Held, Lock};

/// Slots of one chunk.
const CHUNK: usize = 64;
/// Chunks of one table: 65 536 objects of a kind in one process on 64-bit hosts, 16 384 on 32-bit ones.
const CHUNKS: usize = if usize::BITS == 64 { 1024 } else { 256 };

/// The handle of an object as a number. It is not reused for a very long time.
pub(crate) type Name = usize;

/// A slot for one object. All zero is free.
#[repr(C, align(64))]
pub(crate) struct Slot<T> {
    lock: Lock,
    /// Name of the object in the slot; 0 if it is free.
    name: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is only accessed under the slot's lock.
unsafe impl<T: Send> Sync for Slot<T> {}

/// The object of a slot, locked.
pub(crate) struct Guard<T: 'static> {
    slot: &'static Slot<T>,
    held: Held,
}

impl<T> Slot<T> {
    /// Offset of the object. On a 64-bit host the first cache line is for threads that do not own the lock.
    pub(crate) const OBJECT_AT: usize = offset_of!(Slot<T>, value);

    /// Name of the object in the slot at this moment; 0 if it is free.
    pub(crate) fn name(&self) -> Name {
        self.name.load(Ordering::Relaxed)
    }

    /// Locks the slot if it holds an object.
    #[inline(always)]
    pub(crate) fn lock_any(&'static self) -> Option<Guard<T>> {
        self.lock_if(|name| name != 0)
    }

    /// Locks the slot if it holds this object.
    #[inline(always)]
    pub(crate) fn lock(&'static self, name: Name) -> Option<Guard<T>> {
        self.lock_if(|here| here == name)
    }

    #[inline(always)]
    fn lock_if(&'static self, wanted: impl FnOnce(Name) -> bool) -> Option<Guard<T>> {
        self.guard_if(self.lock.lock(), wanted)
    }

    /// Locks the slot for the thread that owns its lock, if it holds this object.
    #[inline(always)]
    fn lock_as_owner(&'static self, name: Name) -> Option<Guard<T>> {
        let held = self.lock.lock_as_owner()?;
        self.guard_if(held, |here| here == name)
    }

    /// Locks the slot for a watcher, if it holds this object (see `Lock::borrow`).
    pub(crate) fn lock_watching(&'static self, name: Name) -> Option<Guard<T>> {
        self.guard_if(self.lock.borrow(), |here| here == name)
    }

    #[inline(always)]
    fn guard_if(&'static self, held: Held, wanted: impl FnOnce(Name) -> bool) -> Option<Guard<T>> {
        if !wanted(self.name.load(Ordering::Relaxed)) {
            self.lock.unlock(held);
            return None;
        }
        Some(Guard { slot: self, held })
    }

    /// Whether a thread holds the lock, or has used it recently (see `Lock::owner_is_active`).
    pub(crate) fn is_in_use(&self) -> bool {
        self.lock.owner_is_active()
    }
}

impl<T> Guard<T> {
    /// The slot, for later use.
    pub(crate) fn slot(&self) -> &'static Slot<T> {
        self.slot
    }

    /// A pointer to the object, without a reference to it: it stays valid across other references, as long as
    /// the object exists.
    #[inline(always)]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.slot.value.get().cast()
    }

    /// Name of the object, to find it again if it still exists.
    pub(crate) fn name(&self) -> Name {
        self.slot.name.load(Ordering::Relaxed)
    }

    /// Removes the object and frees the slot.
    fn vacate(self) -> T {
        self.slot.name.store(0, Ordering::Relaxed);
        // SAFETY: locked and live until the line above; it is not read again.
        unsafe { (*self.slot.value.get()).assume_init_read() }
    }
}

impl<T> Deref for Guard<T> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: locked and live, so it is initialised and not shared.
        unsafe { (*self.slot.value.get()).assume_init_ref() }
    }
}

impl<T> DerefMut for Guard<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { (*self.slot.value.get()).assume_init_mut() }
    }
}

impl<T> Drop for Guard<T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.slot.lock.unlock(self.held);
    }
}

/// The free slots of a table. It belongs to the process, so that a forked child starts with an empty table.
pub(crate) struct Free(Mutex<FreeState>);

struct FreeState {
    free: Vec<u32>,
    used: u32,
    generation: u32,
}

impl Free {
    /// No slot in use. `seed` makes the generations of different processes differ.
    pub(crate) fn new(seed: u32) -> Self {
        Free(Mutex::new(FreeState {
            free: Vec::new(),
            used: 0,
            generation: seed,
        }))
    }
}

/// All objects of one kind.
pub(crate) struct Table<T: 'static> {
    kind: Kind,
    chunks: [AtomicPtr<Slot<T>>; CHUNKS],
}

impl<T: Send> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Table {
            kind,
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
        }
    }

    /// The slot of a handle, whatever it holds. Kind and number are part of the name under which the slot is
    /// locked, so only a handle without a slot is refused here.
    #[inline(always)]
    pub(crate) fn slot(&self, handle: *mut c_void) -> Option<&'static Slot<T>> {
        let number = handle::slot(handle);
        let chunk = self.chunks[number / CHUNK % CHUNKS].load(Ordering::Acquire);
        if handle.is_null() || chunk.is_null() {
            return None;
        }
        // SAFETY: chunks have CHUNK slots and are never unmapped.
        Some(unsafe { &*chunk.add(number % CHUNK) })
    }

    /// Locks the object of a handle; `None` if the handle is stale or invalid.
    #[inline(always)]
    pub(crate) fn lock(&self, handle: *mut c_void) -> Option<Guard<T>> {
        self.slot(handle)?.lock(handle.addr())
    }

    /// Fast path, for a thread that owns the object's lock. `None` does not mean that the handle is invalid.
    #[inline(always)]
    pub(crate) fn lock_as_owner(&self, handle: *mut c_void) -> Option<Guard<T>> {
        self.slot(handle)?.lock_as_owner(handle.addr())
    }

    /// Inserts a new object; `make` receives its handle. `None` if the table is full or memory is exhausted.
    pub(crate) fn insert(
        &self,
        free: &Free,
        make: impl FnOnce(*mut c_void) -> T,
    ) -> Option<*mut c_void> {
        let (slot, handle) = self.reserve(free)?;
        let held = slot.lock.lock();
        // SAFETY: the slot is free and locked; writing drops nothing.
        unsafe { (*slot.value.get()).write(make(handle)) };
        slot.name.store(handle.addr(), Ordering::Relaxed);
        slot.lock.unlock(held);
        Some(handle)
    }

    /// A free slot, and the handle of its next object.
    fn reserve(&self, free: &Free) -> Option<(&'static Slot<T>, *mut c_void)> {
        let mut state = free.0.lock();
        let slot = match state.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = state.used;
                self.map_chunk(slot as usize / CHUNK)?;
                state.used += 1;
                slot
            }
        };
        state.generation = handle::generation(state.generation.wrapping_add(1));
        let parts = Parts {
            generation: state.generation,
            slot,
        };
        let handle = handle::join(self.kind, parts);
        Some((self.slot(handle)?, handle))
    }

    fn map_chunk(&self, chunk: usize) -> Option<()> {
        let place = self.chunks.get(chunk)?;
        if !place.load(Ordering::Acquire).is_null() {
            return Some(());
        }
        let bytes = CHUNK * size_of::<Slot<T>>();
        // Zeroed slots are free slots.
        let memory = vipl_sys::fork::map_wiped(bytes)
            .inspect_err(|error| log::error!(target: "core", "no room for more handles: {error}"));
        let memory = memory.ok()?;
        // Release: a thread that sees the pointer sees zeroed slots.
        place.store(memory.cast(), Ordering::Release);
        Some(())
    }

    /// Removes a locked object from the table; its handle becomes stale.
    pub(crate) fn remove(&self, free: &Free, guard: Guard<T>, handle: *mut c_void) -> T {
        let value = guard.vacate();
        free.0.lock().free.push(handle::slot(handle) as u32);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: Table<u64> = Table::new(Kind::Cq);

    #[test]
    fn a_handle_is_stale_also_when_the_generations_wrap() {
        static TABLE: Table<u64> = Table::new(Kind::Connection);
        let free = Free::new(4_u32.wrapping_neg());
        let mut last = std::ptr::null_mut();
        for number in 0..8 {
            let handle = TABLE.insert(&free, |_| number).unwrap();
            assert_ne!(handle, last, "{number}");
            let guard = TABLE.lock(handle).unwrap();
            assert_eq!(TABLE.remove(&free, guard, handle), number);
            last = handle;
        }
    }

    #[test]
    fn stale_handles_find_nothing() {
        let free = Free::new(5);
        let first = TABLE.insert(&free, |_| 1).unwrap();
        let second = TABLE.insert(&free, |_| 2).unwrap();
        assert_ne!(first, second);
        assert_eq!(*TABLE.lock(first).unwrap(), 1);
        let guard = TABLE.lock(first).unwrap();
        assert_eq!(TABLE.remove(&free, guard, first), 1);
        assert!(TABLE.lock(first).is_none());
        // Not another kind, not a missing slot, and not NULL, whose slot is the first one and free.
        let other = |bits: usize| std::ptr::without_provenance_mut(second.addr() ^ bits);
        let top = 1 << (usize::BITS - 1);
        for wrong in [other(top), other(CHUNKS * CHUNK), other(second.addr())] {
            assert!(TABLE.lock(wrong).is_none(), "{wrong:?}");
        }
        let third = TABLE.insert(&free, |_| 3).unwrap();
        assert_ne!(first, third, "the slot is used again under another handle");
        assert!(TABLE.lock(first).is_none());
        assert_eq!(*TABLE.lock(second).unwrap(), 2);
    }
}

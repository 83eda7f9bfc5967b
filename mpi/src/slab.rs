//! Numbered storage. A number names one value for ever: after its removal the number finds nothing.

/// Values by number.
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Number of a value; never 0, so that it can travel as a pointer that is not null.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id(u64);

impl Id {
    /// The number of no value.
    pub(crate) const NONE: Id = Id(0);

    /// As an integer of pointer size.
    pub(crate) fn to_bits(self) -> usize {
        self.0 as usize
    }

    /// From [`Id::to_bits`].
    pub(crate) fn from_bits(bits: usize) -> Id {
        Id(bits as u64)
    }

    fn slot(self) -> usize {
        (self.0 & 0xFF_FFFF) as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 24) as u32
    }
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores a value.
    pub(crate) fn insert(&mut self, value: T) -> Id {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 1,
                value: None,
            });
            self.slots.len() - 1
        });
        self.slots[slot].value = Some(value);
        Id(u64::from(self.slots[slot].generation) << 24 | slot as u64)
    }

    fn slot(&mut self, id: Id) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut(id.slot())?;
        (slot.generation == id.generation()).then_some(slot)
    }

    /// The value, unless it was removed.
    #[inline]
    pub(crate) fn get(&mut self, id: Id) -> Option<&mut T> {
        self.slot(id)?.value.as_mut()
    }

    /// Takes the value out; its number is never used again until 2^32 others have been in its place.
    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        let slot = self.slot(id)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1).max(1);
        self.free.push(id.slot());
        Some(value)
    }

    /// All values.
    pub(crate) fn iter(&mut self) -> impl Iterator<Item = (Id, &mut T)> {
        let numbered = self.slots.iter_mut().enumerate();
        numbered.filter_map(|(at, slot)| {
            let id = Id(u64::from(slot.generation) << 24 | at as u64);
            slot.value.as_mut().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_removed_value_finds_nothing() {
        let mut slab = Slab::new();
        let (one, two) = (slab.insert("one"), slab.insert("two"));
        assert_eq!(slab.remove(one), Some("one"));
        assert_eq!(slab.get(one), None);
        assert_eq!(slab.remove(one), None);
        let three = slab.insert("three");
        assert_ne!(three, one);
        assert_eq!(slab.get(one), None);
        assert_eq!(slab.get(three), Some(&mut "three"));
        assert_eq!(slab.get(Id::from_bits(two.to_bits())), Some(&mut "two"));
        assert_eq!(slab.iter().count(), 2);
        assert_ne!(one.to_bits(), 0);
    }
}

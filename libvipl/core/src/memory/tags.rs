//! Protection tags (spec §3.16). A tag's number is what plug-ins compare.

use std::collections::BTreeMap;

use vipl_abi::VIP_PROTECTION_HANDLE;
use vipl_plugin_abi::{VIPL_PTAG_ANY, VIPL_PTAG_NONE};
use vipl_sys::wrap;

use crate::error::Error;
use crate::object::handle::{self, Kind, Parts};

/// The tags of one NIC handle, with the number of VIs and regions that use each.
pub(crate) struct Ptags {
    users: BTreeMap<u32, u32>,
    last: u32,
    max: u32,
    /// Distinguishes the tags of different NIC handles.
    slot: u32,
}

impl Ptags {
    pub(crate) fn new(seed: u32, max: u32) -> Self {
        let slot = seed & ((1 << handle::SLOT_BITS) - 1);
        Ptags {
            users: BTreeMap::new(),
            last: wrap::start(seed.wrapping_mul(0x9E37_79B9)) >> 8,
            max,
            slot,
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.users.len()
    }

    pub(super) fn create(&mut self) -> Result<VIP_PROTECTION_HANDLE, Error> {
        if self.users.len() >= self.max as usize {
            log::info!(target: "mem", "no more than {} protection tags on one NIC handle", self.max);
            return Err(Error::Resource);
        }
        // Counting up prevents reuse of a destroyed tag's value.
        loop {
            self.last = handle::generation(self.last.wrapping_add(1));
            if self.last != VIPL_PTAG_NONE && !self.users.contains_key(&self.last) {
                break;
            }
        }
        self.users.insert(self.last, 0);
        Ok(self.handle(self.last))
    }

    /// The handle for the number of a tag; NULL for 0.
    pub(crate) fn handle(&self, tag: u32) -> VIP_PROTECTION_HANDLE {
        if tag == VIPL_PTAG_ANY || tag == VIPL_PTAG_NONE {
            return std::ptr::null_mut();
        }
        handle::join(
            Kind::Ptag,
            Parts {
                generation: tag,
                slot: self.slot,
            },
        )
    }

    /// The number of a live tag of this NIC handle.
    pub(crate) fn number(&self, handle: VIP_PROTECTION_HANDLE) -> Result<u32, Error> {
        match handle::split(Kind::Ptag, handle) {
            Some(parts)
                if parts.slot == self.slot && self.users.contains_key(&parts.generation) =>
            {
                Ok(parts.generation)
            }
            _ => Err(Error::Ptag),
        }
    }

    /// Takes a reference to the tag for a VI or region; no effect for 0.
    pub(crate) fn hold(&mut self, tag: u32) -> Result<(), Error> {
        if tag != VIPL_PTAG_ANY && tag != VIPL_PTAG_NONE {
            *self.users.get_mut(&tag).ok_or(Error::Ptag)? += 1;
        }
        Ok(())
    }

    /// Drops a reference to the tag.
    pub(crate) fn release(&mut self, tag: u32) {
        if let Some(users) = self.users.get_mut(&tag) {
            *users -= 1;
        }
    }

    pub(super) fn destroy(&mut self, handle: VIP_PROTECTION_HANDLE) -> Result<(), Error> {
        let tag = self.number(handle)?;
        if self.users[&tag] > 0 {
            log::info!(
                target: "mem",
                "VipDestroyPtag refused: {} VIs and regions use the tag", self.users[&tag]
            );
            return Err(Error::Resource);
        }
        self.users.remove(&tag);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_in_use_stays_and_a_destroyed_one_never_returns() {
        let mut ptags = Ptags::new(3, 2);
        let first = ptags.create().unwrap();
        let second = ptags.create().unwrap();
        assert_eq!(ptags.create(), Err(Error::Resource));
        let tag = ptags.number(first).unwrap();
        ptags.hold(tag).unwrap();
        assert_eq!(ptags.destroy(first), Err(Error::Resource));
        ptags.release(tag);
        assert_eq!(ptags.destroy(first), Ok(()));
        assert_eq!(ptags.destroy(first), Err(Error::Ptag));
        let third = ptags.create().unwrap();
        assert!(third != first && third != second);
        assert_eq!(ptags.destroy(std::ptr::null_mut()), Err(Error::Ptag));
    }
}

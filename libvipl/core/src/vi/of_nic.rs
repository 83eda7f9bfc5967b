//! The VIs of a NIC.

use std::mem::MaybeUninit;

use super::{VIS, Vi};
use crate::nic::Nic;
use crate::object::table::Guard;

/// Maximum VIs requested from the plug-in at a time, which fit into a small stack.
const READY_ROOM: usize = 1024;
/// Maximum requests of one poll: as many as find each VI of this project's plug-ins once, so that busy VIs with
/// low numbers do not delay the others.
const READY_ROUNDS: u32 = 16;
/// Number of entries that a plug-in may leave unused although there are more VIs: the bits of one word.
const READY_UNUSED: usize = 63;

/// Visits every VI of a NIC, locked.
pub(crate) fn each(nic: &Nic, mut visit: impl FnMut(Guard<Vi>)) {
    for index in 0..nic.vi_bound() {
        let handle = nic.vi_handle(index);
        // Most numbers are free on a NIC that once had many VIs.
        if !handle.is_null()
            && let Some(vi) = VIS.lock(handle)
        {
            visit(vi);
        }
    }
}

/// Makes progress on every VI that may have completions.
pub(crate) fn progress(nic: &Nic) {
    let Some(ready) = nic.ops.ready else {
        return each(nic, |mut vi| vi.progress());
    };
    let mut indices = [const { MaybeUninit::<u32>::uninit() }; READY_ROOM];
    for _ in 0..READY_ROUNDS {
        let room = indices.as_mut_ptr().cast();
        // SAFETY: the NIC is open; the plug-in writes at most `room` numbers.
        let found = unsafe { ready(nic.abi(), room, READY_ROOM as u32) } as usize;
        for index in indices.iter().take(found) {
            // SAFETY: the plug-in has written this many.
            let index = unsafe { index.assume_init() };
            if let Some(mut vi) = VIS.lock(nic.vi_handle(index)) {
                vi.progress();
            }
        }
        if found + READY_UNUSED < READY_ROOM {
            break;
        }
    }
}

/// Makes progress on one VI. Returns whether a descriptor was completed.
#[inline(always)]
pub(crate) fn progress_one(vi: &mut Guard<Vi>) -> bool {
    let before = completed(vi);
    vi.progress();
    completed(vi) != before
}

/// The result of a poll of a VI by a background thread of the plug-in.
pub(crate) enum Polled {
    /// No descriptor was completed, or the VI does not exist.
    Nothing,
    /// A descriptor was completed.
    Progress,
    /// A thread of the application is using the VI.
    Busy,
}

/// Makes progress on a VI, for a background thread of the plug-in.
pub(crate) fn poll(nic: &Nic, index: u32) -> Polled {
    let handle = nic.vi_handle(index);
    let Some(slot) = VIS.slot(handle) else {
        return Polled::Nothing;
    };
    if slot.is_in_use() {
        return Polled::Busy;
    }
    let Some(mut vi) = slot.lock_watching(handle.addr()) else {
        return Polled::Nothing;
    };
    let progressed = progress_one(&mut vi);
    vi.publish_completed();
    if progressed {
        Polled::Progress
    } else {
        Polled::Nothing
    }
}

fn completed(vi: &Vi) -> u32 {
    vi.abi.send.completed.wrapping_add(vi.abi.recv.completed)
}

#[cfg(test)]
mod tests {
    use vipl_abi::*;

    use super::*;
    use crate::device::{close, open_without_agent};
    use crate::nic::resolve;
    use crate::vi::destroy;
    use crate::vi::tests::device;

    fn visited(nic: VIP_NIC_HANDLE) -> usize {
        let mut count = 0;
        each(&resolve(nic).unwrap(), |_| count += 1);
        count
    }

    /// The slot of a destroyed VI may hold a VI of another NIC; the first NIC must not reach that one.
    #[test]
    fn a_nic_reaches_its_own_live_vis_only() {
        let nics = [(); 2].map(|()| open_without_agent(device::plugin(false)).unwrap());
        let first = device::vi(nics[0]);
        assert_eq!(nics.map(visited), [1, 0]);
        assert_eq!(destroy(first), Ok(()));
        let second = device::vi(nics[1]);
        assert_eq!(nics.map(visited), [0, 1]);
        let nic = resolve(nics[0]).unwrap();
        for index in [0, 1, u32::MAX] {
            assert!(matches!(poll(&nic, index), Polled::Nothing), "{index}");
        }
        drop(nic);
        assert_eq!(destroy(second), Ok(()));
        assert_eq!(nics.map(close), [Ok(()), Ok(())]);
    }
}

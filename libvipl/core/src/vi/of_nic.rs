//! The VIs of a NIC.

use super::{VIS, Vi};
use crate::nic::Nic;
use crate::object::table::Guard;

/// Times a poll asks the plug-in which VIs have something.
const READY_ROUNDS: u32 = 16;

/// Visits every VI of a NIC, locked.
pub(crate) fn each(nic: &Nic, mut visit: impl FnMut(Guard<Vi>)) {
    for index in 0..nic.vi_bound() {
        if let Some(vi) = VIS.lock(nic.vi_handle(index)) {
            visit(vi);
        }
    }
}

/// Lets every VI that may have something take it.
pub(crate) fn progress(nic: &Nic) {
    let Some(ready) = nic.ops.ready else {
        return each(nic, |mut vi| vi.progress());
    };
    let mut indices = [0u32; 128];
    for _ in 0..READY_ROUNDS {
        // SAFETY: the NIC is open; the plug-in writes at most `room` numbers.
        let found = unsafe { ready(nic.abi(), indices.as_mut_ptr(), indices.len() as u32) };
        if found == 0 {
            break;
        }
        for &index in indices.iter().take(found as usize) {
            if let Some(mut vi) = VIS.lock(nic.vi_handle(index)) {
                vi.progress();
            }
        }
    }
}

/// What a background thread of the plug-in found at a VI.
pub(crate) enum Polled {
    /// Nothing has been completed, or the VI does not exist.
    Nothing,
    /// Something has been completed.
    Progress,
    /// A thread of the application uses the VI.
    Busy,
}

/// Lets a VI take what has arrived, for a background thread of the plug-in.
pub(crate) fn poll(nic: &Nic, index: u32) -> Polled {
    let Some((slot, generation)) = VIS.slot(nic.vi_handle(index)) else {
        return Polled::Nothing;
    };
    if slot.is_in_use() {
        return Polled::Busy;
    }
    let Some(mut vi) = slot.lock_watching(generation) else {
        return Polled::Nothing;
    };
    let before = completed(&vi);
    vi.progress();
    if completed(&vi) == before {
        Polled::Nothing
    } else {
        Polled::Progress
    }
}

fn completed(vi: &Vi) -> u32 {
    vi.abi.send.completed.wrapping_add(vi.abi.recv.completed)
}

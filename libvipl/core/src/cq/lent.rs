//! The NIC of a CQ, for a poll that uses it while the CQ is unlocked.
//!
//! Another thread may destroy the CQ meanwhile, and then close the NIC. A reference count of its own would cost each
//! poll two atomic operations. So the CQ counts its loans in a plain field, under its lock, and its reference to the
//! NIC serves them all. VipDestroyCQ makes one more reference for each open loan, which the borrower drops:
//!
//! ```text
//!   borrower                          VipDestroyCQ (holds the CQ's lock)
//!   lock: loans + 1; unlock
//!   uses the NIC                      a reference for each loan, then the CQ goes
//!   lock: the CQ is there: loans - 1
//!         it is gone: drops one reference
//! ```
//!
//! The lock orders the two: either the borrower gives its loan back before VipDestroyCQ counts them, or it finds the
//! CQ gone, and then the reference has been made.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use crate::nic::Nic;

/// What a CQ knows of its NIC.
pub(crate) struct Lender {
    nic: Arc<Nic>,
    loans: u32,
}

/// A loan. It ends with [`Lender::take_back`], or with [`Loan::keep`] if the CQ has been destroyed.
#[must_use]
pub(super) struct Loan(ManuallyDrop<Arc<Nic>>);

impl Lender {
    pub(super) fn new(nic: Arc<Nic>) -> Lender {
        Lender { nic, loans: 0 }
    }

    #[inline(always)]
    pub(super) fn lend(&mut self) -> Loan {
        self.loans += 1;
        // SAFETY: a copy that is not dropped; it counts only as what `keep` makes of it.
        Loan(ManuallyDrop::new(unsafe {
            std::ptr::read(&raw const self.nic)
        }))
    }

    #[inline(always)]
    pub(super) fn take_back(&mut self, _loan: Loan) {
        self.loans -= 1;
    }

    /// The CQ is about to go: every open loan becomes a reference.
    pub(super) fn leave_to_borrowers(&mut self) {
        for _ in 0..std::mem::take(&mut self.loans) {
            std::mem::forget(self.nic.clone());
        }
    }
}

impl Loan {
    /// The CQ has been destroyed, which has left a reference to this loan.
    #[cold]
    pub(super) fn keep(self) -> Arc<Nic> {
        ManuallyDrop::into_inner(self.0)
    }
}

impl Deref for Lender {
    type Target = Arc<Nic>;
    #[inline(always)]
    fn deref(&self) -> &Arc<Nic> {
        &self.nic
    }
}

impl Deref for Loan {
    type Target = Nic;
    #[inline(always)]
    fn deref(&self) -> &Nic {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{close, open_without_agent};
    use crate::nic::resolve;
    use crate::vi::tests::device;

    #[test]
    fn a_loan_outlives_its_lender() {
        let handle = open_without_agent(device::plugin(false)).unwrap();
        let nic = resolve(handle).unwrap();
        let mut lender = Lender::new(nic.clone());
        let count = || Arc::strong_count(&nic);
        let before = count();
        let returned = lender.lend();
        let kept = lender.lend();
        assert_eq!(count(), before, "a loan is no reference");
        assert_eq!(returned.handle, handle);
        lender.take_back(returned);
        lender.leave_to_borrowers();
        drop(lender);
        assert_eq!(count(), before, "one is left in place of the lender's");
        assert_eq!(kept.handle, handle);
        drop(kept.keep());
        assert_eq!(count(), before - 1);
        drop(nic);
        assert_eq!(close(handle), Ok(()));
    }
}

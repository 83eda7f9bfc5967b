//! A CQ's reference to its NIC, lent to a poll that uses the NIC while the CQ is unlocked.
//!
//! Another thread may destroy the CQ meanwhile, and then close the NIC. A reference count per poll would cost
//! two atomic operations. Therefore the CQ counts loans in a plain field, under its lock, and its own
//! reference to the NIC covers them all. VipDestroyCQ adds one reference for each open loan, which the
//! borrower drops:
//!
//! ```text
//!   borrower                          VipDestroyCQ (holds the CQ's lock)
//!   lock: loans + 1; unlock
//!   uses the NIC                      a reference for each loan, then the CQ goes
//!   lock: the CQ is there: loans - 1
//!         it is destroyed: drops one reference
//! ```
//!
//! The lock orders the two: either the borrower returns its loan before VipDestroyCQ counts the loans, or it
//! finds the CQ destroyed, and then the reference exists.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use crate::nic::Nic;

/// A CQ's reference to its NIC, with the number of loans.
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
        // SAFETY: a copy that is never dropped; only `keep` makes it a reference that counts.
        Loan(ManuallyDrop::new(unsafe {
            std::ptr::read(&raw const self.nic)
        }))
    }

    #[inline(always)]
    pub(super) fn take_back(&mut self, _loan: Loan) {
        self.loans -= 1;
    }

    /// The CQ is being destroyed: every open loan becomes a reference.
    pub(super) fn leave_to_borrowers(&mut self) {
        for _ in 0..std::mem::take(&mut self.loans) {
            std::mem::forget(self.nic.clone());
        }
    }
}

impl Loan {
    /// The CQ has been destroyed, which left a reference for this loan.
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

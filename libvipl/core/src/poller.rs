//! Progress for devices whose plug-in has no thread (`vipl_nic_info.poll_us`).

use std::io;
use std::sync::Arc;
use std::thread::Builder;
use std::time::Duration;

use vipl_sys::thread::with_signals_blocked;

use crate::nic::Nic;
use crate::vi::of_nic;

/// Starts the thread, if the device needs one. It sleeps while there are no VIs, and ends within one period
/// after the NIC was closed.
pub(crate) fn start(nic: &Arc<Nic>) -> io::Result<()> {
    let period = Duration::from_micros(nic.info.poll_us.into());
    if period.is_zero() {
        return Ok(());
    }
    let polled = Arc::downgrade(nic);
    let run = move || {
        loop {
            let Some(nic) = polled.upgrade() else {
                return;
            };
            let vis = nic.vi_bound();
            for index in 0..vis {
                of_nic::poll(&nic, index);
            }
            drop(nic);
            if vis == 0 {
                // The first VI, or the end of the NIC, unparks it.
                std::thread::park();
            } else {
                vipl_sys::clock::sleep(period);
            }
        }
    };
    // A thread of the standard library, which can be unparked.
    let builder = Builder::new().name("vipl-poll".into());
    let thread = with_signals_blocked(|_| builder.spawn(run))?;
    let _ = nic.poller.set(thread.thread().clone());
    Ok(())
}

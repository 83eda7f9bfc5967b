//! Progress for devices whose plug-in has no thread of its own (`vipl_nic_info.poll_us`).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use vipl_sys::thread::spawn_with_signals_blocked;

use crate::nic::Nic;
use crate::vi::of_nic;

/// Starts the thread, if the device wants one. It ends within one period after the NIC.
pub(crate) fn start(nic: &Arc<Nic>) -> io::Result<()> {
    let period = Duration::from_micros(nic.info.poll_us.into());
    if period.is_zero() {
        return Ok(());
    }
    let nic = Arc::downgrade(nic);
    let run = move || {
        loop {
            std::thread::sleep(period);
            let Some(nic) = nic.upgrade() else {
                return;
            };
            for index in 0..nic.vi_bound() {
                of_nic::poll(&nic, index);
            }
        }
    };
    spawn_with_signals_blocked("vipl-poll", run).map(drop)
}

//! Programs that compute on the processors that others need: nothing may run beside these tests, and
//! `cargo xtask tests` knows it.

use vipl_ctest::{Run, program};

/// Processes that are confined to a processor: waits poll, and empty polls yield.
#[test]
fn on_a_crowded_processor() {
    for form in [None, Some("-1")] {
        let crowded = || form.iter().fold(Run::strict(program("crowded")), Run::arg);
        crowded().env("VIPL_SPIN_US", "5000000").pass();
        crowded().arg("together").pass();
    }
}

/// With more runnable threads than processors calls keep their time, and no peer is taken for dead.
#[test]
fn beside_programs_that_compute() {
    for device in ["loopback:", "sim:", "clan:"] {
        Run::strict(program("starved")).arg("-d").arg(device).pass();
    }
}

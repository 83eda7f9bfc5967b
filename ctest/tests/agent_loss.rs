//! The Kernel Agent is killed, and the next one takes over.

use vipl_ctest::{Run, library_dir, program};

#[test]
fn connections_outlive_their_agent() {
    for run in [
        Run::strict(program("agent_loss")),
        Run::compatible(program("agent_loss")),
    ] {
        run.arg(library_dir().join("vipkad"))
            .seconds(300)
            .allow("the Kernel Agent ended")
            .allow("VIP_ERROR_CONN_LOST")
            .pass();
    }
}

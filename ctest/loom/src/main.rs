//! The lock-free parts of the product under loom, which tries every order in which threads can run and
//! every value that the memory model lets a load return.
//!
//! `bell.rs`, `board.rs`, `claim.rs`, `region.rs` and `lock.rs` are the product's own files; `sync`, `barrier`, `abi` and
//! `buffers` here stand in for what those import. The ring is a model of its own (`ring.rs`): its slots are raw shared
//! memory, which loom cannot follow.

mod abi;
mod barrier;
#[path = "../../../base/sys/src/bell.rs"]
mod bell;
#[path = "../../../plugins/loopback/src/board.rs"]
mod board;
#[path = "../../../plugins/clan/proto/src/claim.rs"]
mod claim;
#[path = "../../../libvipl/core/src/object/lock.rs"]
mod lock;
mod models;
#[path = "../../../base/rules/src/region.rs"]
mod region;
mod ring;
mod buffers;
mod sync;

use sync::{futex, membarrier};

fn main() {
    let only = std::env::args().nth(1);
    for (name, model) in models::ALL {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let start = std::time::Instant::now();
        let runs = models::explore(*model);
        println!(
            "loom: {name}: {runs} executions, {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
}

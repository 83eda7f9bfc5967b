//! Tests of programs between two machines, which `cargo xtask guest --two` starts on both.
//!
//! ```text
//!   guest 0: vipl-guests run                                    guest 1: vipl-guests serve
//!     a C program, side 0 ── socket ── this program as its child ── orders ── the C program, side 1
//! ```
//!
//! The C programs are those of `ctest/programs`, untouched. Their second side may be another program (`CTEST_SECOND`): it is
//! this one, which has the side started in the other guest and carries what the two tell each other, beside VIPL. Orders go
//! over the second cable, so that the first one can be cut.
//!
//! | file | contents |
//! | --- | --- |
//! | `order` | what is said between the guests |
//! | `serve` | carries out orders, in guest 1 |
//! | `second` | stands for side 1, in guest 0 |
//! | `hosts` | both guests with their agents, for tests |
//! | `list` | the tests |

mod hosts;
mod list;
mod order;
mod second;
mod serve;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Ok(side) = std::env::var("CTEST_SIDE") {
        return second::run(&side);
    }
    match words.split_first() {
        Some((word, [])) if word == "compile" => list::compile(),
        Some((word, [])) if word == "serve" => serve::run(),
        Some((word, names)) if word == "run" => list::run(names),
        _ => {
            eprintln!("usage: vipl-guests compile | serve | run [NAME]...");
            ExitCode::from(2)
        }
    }
}

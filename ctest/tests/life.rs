//! Ends of threads and processes, cancellation, handlers that leave, standard descriptors that are not there: the part of the
//! matrix (`vipl_ctest::life`) that takes seconds. The whole is `cargo xtask deep --only life`.

use vipl_ctest::life::matrix;

fn device(name: &str) {
    let report = matrix(name, false, |run| run);
    println!("{report}");
    assert!(report.failures.is_empty(), "{}", report.failures.join("\n"));
}

#[test]
fn on_loopback() {
    device("via_lo");
}

#[test]
fn on_sim() {
    device("sim:");
}

/// What `cargo xtask deep` runs.
mod deep {
    use super::*;

    #[test]
    #[ignore = "cargo xtask deep"]
    fn on_clan() {
        device("clan:");
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn on_ip() {
        device("ip:127.0.0.1");
    }
}

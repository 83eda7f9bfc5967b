//! A third host sees all datagrams between two, and sends a copy of each under its own address, before the original arrives.

use std::os::unix::fs::PermissionsExt;

use vipl_netns::{Apart, INTERFACE, Impairments, Namespaces, Relay};

/// Connections go on, and their data stays exact, with a secret and without.
#[test]
fn copies_from_elsewhere_change_nothing() {
    let hosts = match Namespaces::bridge(3) {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    let file = std::env::temp_dir().join(format!("{}-secret", hosts.name(0)));
    std::fs::write(&file, "a secret of some length").expect("a file");
    let closed = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&file, closed).expect("a file of mine");
    let relay = Relay::start(&hosts, Impairments::default()).expect("a relay");
    relay.copy(true);
    for secret in [true, false] {
        let apart = match secret {
            true => Apart::with_secret(&hosts, &file),
            false => Apart::new(&hosts),
        };
        // A peer that is sent to nowhere is given up after nine seconds.
        let run = apart.run("cable", &format!("ip:{INTERFACE}"));
        let run = run.arg("survive").arg("12").env("VIPL_LOG", "info");
        let finished = run.allow("").pass();
        let followed = finished.stderr.contains(": the peer at ");
        assert!(!followed, "{}", finished.report("the peer stays"));
        let copies = relay.copies();
        assert!(copies > 100, "{copies} copies");
    }
    std::fs::remove_file(&file).expect("the file");
}

//! How often two connected processes wake up while nothing happens between their hosts.

use vipl_netns::{Apart, INTERFACE, Namespaces};

/// Wake-ups a second of a process, or of one that serves it; more than is expected, so that a stray one does no harm.
const MOST: &str = "6";

#[test]
fn processes_on_two_hosts_at_rest_sleep() {
    // They sleep, so all devices have the same time; each has hosts of its own, since a wake-up of an agent counts, too.
    std::thread::scope(|scope| {
        for card in ["gnic2", "tulip", "clan", "ip"] {
            scope.spawn(move || rests(card));
        }
    });
}

fn rests(card: &str) {
    let hosts = match Namespaces::pair() {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    let apart = Apart::new(&hosts);
    let run = apart.run("rest", &format!("{card}:{INTERFACE}"));
    println!("{card}\n{}", run.arg(MOST).pass().stdout);
}

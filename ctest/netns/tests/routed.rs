//! Across a router: programs, and a slow line that is shared with TCP.

use vipl_netns::{Apart, INTERFACE, Namespaces, beside_tcp, stream};

fn skipped(made: Result<Namespaces, String>) -> Option<Namespaces> {
    made.map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

/// Agents and data find their way, with both versions of IP.
#[test]
fn programs_run_across_a_router() {
    let Some(hosts) = skipped(Namespaces::routed()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    for name in ["tour", "rdma", "errors", "disc"] {
        let run = apart.run(name, &format!("ip:{INTERFACE}"));
        run.allow("VIP_ERROR_CONN_LOST").pass();
    }
    for host in 0..2 {
        hosts.take_ipv4(host);
    }
    apart.run("tour", &format!("ip:{INTERFACE}")).pass();
}

/// Beside a TCP with CUBIC, in the same queue before a slow line, each gets at least a third of what the other gets. Half
/// a minute: both take some seconds to find their shares.
#[test]
fn a_slow_line_is_shared_with_tcp() {
    let Some(hosts) = skipped(Namespaces::routed()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    if let Err(why) = hosts.bottleneck(100, 100_000) {
        return println!("SKIP a slow line: {why}");
    }
    let line = 12_500_000.0;
    let device = format!("ip:{INTERFACE}");
    let alone = stream(&apart, &device, 3);
    let (ours, theirs) = beside_tcp(&hosts, || stream(&apart, &device, 20));
    let share = ours / theirs;
    println!(
        "alone {:.2} of the line; beside TCP {:.2} and {:.2}, share {share:.2}",
        alone / line,
        ours / line,
        theirs / line
    );
    assert!((0.33..=3.0).contains(&share), "{share:.2}");
    assert!(alone > line / 2.0, "{alone} of {line} bytes per second");
}

/// A router that marks packets now and then need not drop any: `ip` slows down at each mark, and its queue stays short. The
/// same path without marks drops.
#[test]
fn a_router_that_marks_does_not_drop() {
    let Some(hosts) = skipped(Namespaces::routed()) else {
        return;
    };
    let apart = Apart::new(&hosts);
    if let Err(why) = hosts.bottleneck(100, 200_000) {
        return println!("SKIP a slow line: {why}");
    }
    let device = format!("ip:{INTERFACE}");
    let line = 12_500_000.0;
    let without = stream(&apart, &device, 3);
    let dropped = hosts.dropped();
    if let Err(why) = hosts.mark(5) {
        return println!("SKIP marks: {why}");
    }
    let with = stream(&apart, &device, 3);
    let (marked, more) = (hosts.marked(), hosts.dropped() - dropped);
    println!(
        "without marks {:.2} of the line and {dropped} dropped; with {marked} marks {:.2} and {more}",
        without / line,
        with / line
    );
    assert!(marked > 0);
    assert!(more == 0 || more < dropped, "{more} and {dropped}");
    assert!(with > line / 2.0, "{with} of {line} bytes per second");
}

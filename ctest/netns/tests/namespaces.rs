//! The hosts and cables that the other tests stand on.

use vipl_netns::{INTERFACE, Namespaces};

/// What `ip -o link show` says of a host's interface.
fn shown(hosts: &Namespaces, host: usize) -> String {
    let mut command = hosts.command(host, "ip");
    let output = command
        .args(["-o", "link", "show", INTERFACE])
        .output()
        .expect("ip");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn check(hosts: &Namespaces) {
    for host in 0..hosts.hosts() {
        let address = hosts
            .address(host)
            .map(|byte| format!("{byte:02x}"))
            .join(":");
        assert!(
            shown(hosts, host).contains(&address),
            "{}",
            shown(hosts, host)
        );
        hosts.set_mtu(host, 3000);
        assert!(
            shown(hosts, host).contains("mtu 3000"),
            "{}",
            shown(hosts, host)
        );
    }
    hosts.cut(0);
    hosts.restore(0);
    hosts.set_up(1, false);
    assert!(
        shown(hosts, 1).contains("state DOWN"),
        "{}",
        shown(hosts, 1)
    );
    hosts.set_up(1, true);
}

#[test]
fn hosts_are_made_and_removed() {
    let mut names = Vec::new();
    for made in [Namespaces::pair(), Namespaces::bridge(3)] {
        let hosts = match made {
            Ok(hosts) => hosts,
            Err(why) => {
                println!("SKIP network namespaces: {why}");
                return;
            }
        };
        check(&hosts);
        names.extend((0..hosts.hosts()).map(|host| hosts.name(host).to_owned()));
    }
    for name in names {
        assert!(
            !std::path::Path::new("/run/netns").join(&name).exists(),
            "{name} is left"
        );
    }
}

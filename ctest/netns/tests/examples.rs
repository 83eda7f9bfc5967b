//! The examples for two hosts, by the names of the hosts.

use vipl_ctest::{Finished, Run, Started, examples, work_dir};
use vipl_netns::{Apart, INTERFACE, Namespaces};

/// Two hosts, their names, and a table for the name service of each device.
struct Net {
    apart: Apart,
    table: std::path::PathBuf,
    /// Ends after the agents inside.
    _hosts: Namespaces,
}

impl Net {
    fn new() -> Option<Net> {
        let hosts = Namespaces::pair();
        let hosts = hosts
            .map_err(|why| println!("SKIP network namespaces: {why}"))
            .ok()?;
        let apart = Apart::new(&hosts);
        let table = work_dir().join(format!("vip_hosts-{}", std::process::id()));
        let lines = (0..2).map(|host| {
            let mac = hosts.address(host).map(|byte| format!("{byte:02x}"));
            format!("gnic2:{} host{host}\n", mac.join(":"))
        });
        std::fs::write(&table, lines.collect::<String>()).expect("the table of hosts");
        Some(Net {
            apart,
            table,
            _hosts: hosts,
        })
    }

    fn run(&self, host: usize, program: &str, arguments: &[&str]) -> Run {
        let run = Run::compatible(examples().join(program)).args(arguments);
        let run = self.apart.on_host(host, run.seconds(240));
        run.env("VIPL_HOSTS", &self.table)
            .allow("VIP_ERROR_CONN_LOST")
    }
}

/// Runs them together; each has to succeed.
fn together(runs: [Run; 2]) -> [Finished; 2] {
    let started: [Started; 2] = runs.map(Run::start);
    let finished = started.map(Started::finish);
    for one in &finished {
        assert!(
            one.status.success() && !one.timed_out,
            "{}",
            one.report("an example")
        );
    }
    finished
}

#[test]
fn examples_find_other_hosts_by_name() {
    let Some(net) = Net::new() else { return };
    let device = &format!("gnic2:{INTERFACE}");
    let [_, client] = together([
        net.run(0, "echo_server", &[device, "1"]),
        net.run(1, "echo_client", &["host0", device, "50"]),
    ]);
    assert!(client.stdout.contains("50 messages to host0 and back"));
    // Two ranks on each host.
    for (program, expected) in [
        ("ring", "ring: 4 ranks, "),
        ("alltoall", ", every byte is right"),
        ("farm", "farm: 300 results of 3 workers"),
        ("histogram", "400000 bytes are counted as by one process"),
        ("dsm_stress", "seeds 1 to 5 are those of one process"),
    ] {
        let path = examples().join(program).display().to_string();
        let job = |first| {
            let hosts = "host0,host0,host1,host1";
            [
                "-d", device, "-H", hosts, "-f", first, "-n", "2", "-j", "a1", &path,
            ]
            .map(str::to_owned)
        };
        let runs = [(0, "0"), (1, "2")].map(|(host, first)| {
            let arguments = job(first);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            net.run(host, "mprun", &arguments)
        });
        let [first, _] = together(runs);
        assert!(first.stdout.contains(expected), "{}", first.report(program));
    }
}

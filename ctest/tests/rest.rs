//! How often processes wake up while nothing happens, on each device.

use vipl_ctest::{Agent, Run, program, work_dir};

/// Devices, and how often a second a connected process, the agent or a device process may wake up on them. The limits are
/// above what is expected, so that a stray wake-up does no harm.
const DEVICES: [(&str, &str); 4] = [
    ("via_lo", "3"),
    ("clan:", "3"),
    ("sim:", "6"),
    ("ip:127.0.0.1", "6"),
];

#[test]
fn processes_at_rest_sleep() {
    // They sleep, so all devices have the same time; others would wake an agent that they use, too.
    std::thread::scope(|scope| {
        for (device, most) in DEVICES {
            scope.spawn(move || rests(device, most));
        }
    });
}

fn rests(device: &str, most: &str) {
    let folder = work_dir().join(format!("rest-{}", device.trim_end_matches(':')));
    std::fs::create_dir_all(&folder).expect("a folder");
    let agent = Agent::start_in(&folder).expect("an agent");
    let run = Run::strict(program("rest")).env("VIPL_AGENT", agent.socket());
    let finished = run.arg("-d").arg(device).arg(most).pass();
    println!("{device}\n{}", finished.stdout);
}

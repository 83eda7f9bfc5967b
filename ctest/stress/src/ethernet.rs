//! Three hosts with two processes each, all to all, over bad cables: messages and RDMA both ways, partings
//! now and then, every byte checked. The cables change their impairments every few seconds.
//!
//! ```text
//!   host 0: processes 0 3 ═╗
//!   host 1: processes 1 4 ═╬═ relay: loses, doubles, holds back and spoils frames
//!   host 2: processes 2 5 ═╝
//! ```

use std::time::{Duration, Instant};

use vipl_abi::VIP_SERVICE_UNRELIABLE;
use vipl_netns::{Impairments, Namespaces, Relay};

use crate::dice::Dice;
use crate::link::{Mode, Spec};
use crate::supervisor::{Run, Setting};

const HOSTS: usize = 3;
const PARTIES: usize = 6;
/// UDP port of an agent that is alone on its host.
const AGENT_PORT: u16 = 34_998;
/// One setting in so many is the worst of all.
const WORST: u64 = 4;
/// How long one setting lasts.
const SETTING_TIME: Duration = Duration::from_secs(10);
/// The time between two lines that tell how far it has come.
const REPORT_EVERY: Duration = Duration::from_secs(30);

/// The address of a host for a device: over UDP its IPv4 address, and the usual port of its agent.
fn address(hosts: &Namespaces, device: &str, host: usize) -> [u8; 6] {
    if !device.starts_with("ip:") {
        return hosts.address(host);
    }
    let [a, b, c, d] = hosts.ipv4(host).octets();
    let [high, low] = AGENT_PORT.to_be_bytes();
    [a, b, c, d, high, low]
}

/// Every party has a link with every other one, also with the one on its own host.
fn mesh(hosts: &Namespaces, setting: &Setting, dice: &mut Dice) -> Vec<Vec<Spec>> {
    let levels = &setting.levels;
    let mut parties = vec![Vec::new(); PARTIES];
    let mut id = 0;
    for one in 0..PARTIES {
        for two in one + 1..PARTIES {
            let (server, client) = match dice.roll(2) {
                0 => (one, two),
                _ => (two, one),
            };
            // Polling takes the processor from the others: one link in five does.
            let mode = match dice.roll(5) {
                0 => Mode::Poll,
                1 | 2 => Mode::Wait,
                _ => Mode::CqWait,
            };
            for party in [server, client] {
                parties[party].push(Spec {
                    id,
                    server: party == server,
                    at: Some(address(hosts, &setting.device, server % HOSTS)),
                    level: levels[id % levels.len()],
                    mode,
                });
            }
            id += 1;
        }
    }
    parties
}

/// Mostly something between clear and the worst.
fn impairments(dice: &mut Dice) -> Impairments {
    let worst = dice.roll(WORST) == 0;
    let mut up_to = |max: f64| match worst {
        true => max,
        false => max * dice.roll(1001) as f64 / 1000.0,
    };
    Impairments {
        loss: up_to(0.05),
        duplicate: up_to(0.05),
        reorder: up_to(0.25),
        corrupt: up_to(0.01),
        delay_ns: up_to(1e6) as u64,
        // 5 to 105 MB/s.
        rate: 105_000_000 - up_to(100e6) as u64,
        seed: dice.next(),
        ..Impairments::default()
    }
}

/// Runs it; gives the line that sums it up.
pub(crate) fn run(mut setting: Setting, time: Duration) -> Result<String, String> {
    if setting.levels.contains(&VIP_SERVICE_UNRELIABLE) {
        return Err("on level 1 a message may get lost, and would be waited for".into());
    }
    let mut dice = Dice::new(setting.seed);
    let hosts = Namespaces::bridge(HOSTS)?;
    setting.hosts = (0..HOSTS).map(|host| hosts.name(host).to_owned()).collect();
    let parties = mesh(&hosts, &setting, &mut dice);
    let relay = Relay::start(&hosts, impairments(&mut dice)).map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let mut run = Run::start(setting, parties)?;
    run.all_up()?;
    let mut reported = Instant::now();
    loop {
        run.for_a_while(SETTING_TIME.min(time.saturating_sub(begun.elapsed())))?;
        run.all_alive()?;
        if begun.elapsed() >= time {
            break;
        }
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            let seconds = begun.elapsed().as_secs();
            let totals = run.totals();
            println!(
                "{seconds} s: {} messages, {} lost connections",
                totals.messages, totals.lost
            );
        }
        relay.impair(impairments(&mut dice));
    }
    // At the end everybody leaves in any order, and may be the one who is left.
    let lost = run.totals().lost;
    let totals = run.end()?;
    let faults = relay.end();
    Ok(format!(
        "{} messages, {} MiB, {} RDMA operations, {} disconnects, {} lost connections, wrong bytes 0; \
         the cables lost {}, doubled {}, held back {}, spoiled {}",
        totals.messages,
        totals.bytes >> 20,
        totals.rdma,
        totals.partings,
        lost,
        faults.lost + faults.overflowed,
        faults.duplicated,
        faults.reordered,
        faults.corrupted,
    ))
}

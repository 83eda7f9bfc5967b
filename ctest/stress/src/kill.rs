//! Kills at random moments: a server, a client or the agent, under busy transfers between all of four
//! processes.

use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::link::{Mode, Spec};
use crate::supervisor::{Holdings, PATIENCE, Run, Setting};

const PARTIES: usize = 4;
/// The longest that a peer may take to learn of a death. On an idle machine it takes milliseconds; this
/// bound is for machines that are anything but idle.
const KNOWN_MAX: Duration = Duration::from_secs(20);
/// The same when the death comes while there is no agent: the next one waits ten seconds for the dead.
const KNOWN_MAX_WITHOUT_AGENT: Duration = Duration::from_secs(40);

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The process that is a server to all others.
    Server,
    /// One that is a client to some others.
    Client,
    Agent,
    /// The agent, and a client before there is another agent.
    Both,
}

/// The order of the kills: of fifteen, five servers, five clients, four agents, one of both; or servers and clients
/// alone.
fn order(times: usize, spare_agents: bool, dice: &mut Dice) -> Vec<Victim> {
    let mut order: Vec<Victim> = (0..times)
        .map(|number| match number % 15 {
            _ if spare_agents => [Victim::Server, Victim::Client][number % 2],
            14 => Victim::Both,
            number => [Victim::Server, Victim::Client, Victim::Agent][number % 3],
        })
        .collect();
    dice.shuffle(&mut order);
    order
}

/// Every party has a link with every other one; of two, the first is the server.
fn mesh(levels: &[u16]) -> Vec<Vec<Spec>> {
    let mut parties = vec![Vec::new(); PARTIES];
    let mut id = 0;
    for server in 0..PARTIES {
        for client in server + 1..PARTIES {
            for (party, is_server) in [(server, true), (client, false)] {
                parties[party].push(Spec {
                    id,
                    server: is_server,
                    at: None,
                    level: levels[id % levels.len()],
                    // Polling would only take the processor from those who are measured.
                    mode: [Mode::Wait, Mode::CqWait][id % 2],
                });
            }
            id += 1;
        }
    }
    parties
}

/// How often each process has gone over to another agent.
fn taken_over(run: &Run) -> Vec<(u32, u32)> {
    let parties = run.parties.iter();
    parties.map(|p| (p.id(), p.taken_over)).collect()
}

/// Waits until these processes have gone over once more.
fn all_go_over(run: &mut Run, before: &[(u32, u32)]) -> Result<(), String> {
    run.until("every process goes over to the next agent", |parties| {
        let over = |id, count| parties.iter().any(|p| p.id() == id && p.taken_over > count);
        before.iter().all(|&(id, count)| over(id, count))
    })
}

fn in_time(known: Duration, limit: Duration) -> Result<(), String> {
    if known <= limit {
        Ok(())
    } else {
        Err(format!("peers knew only after {known:?}"))
    }
}

/// A process with as many connections as at the beginning has as much open as then.
fn same_holdings(run: &mut Run, party: usize, before: &Holdings) -> Result<(), String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let now = run.holdings(party);
        if now.are_still(before) {
            return Ok(());
        }
        if Instant::now() > end {
            return Err(format!(
                "process {party} has open {now:?}, before it was {before:?}"
            ));
        }
        run.for_a_while(Duration::from_millis(10))?;
    }
}

/// Runs it; gives the line that sums it up.
pub(crate) fn run(setting: Setting, times: usize, spare_agents: bool) -> Result<String, String> {
    let mut dice = Dice::new(setting.seed);
    let order = order(times, spare_agents, &mut dice);
    let parties = mesh(&setting.levels);
    let mut run = Run::start(setting, parties)?;
    run.all_up()?;
    let before: Vec<_> = (0..PARTIES).map(|party| run.holdings(party)).collect();
    let (mut slowest, mut slowest_without) = (Duration::ZERO, Duration::ZERO);
    for (round, victim) in order.iter().enumerate() {
        let moment = Duration::from_micros(dice.roll(20_000));
        let client = 1 + dice.roll(PARTIES as u64 - 1) as usize;
        let gap = Duration::from_micros(dice.roll(300_000));
        run.for_a_while(moment)?;
        let context = |error: String| format!("kill {round}, {victim:?}: {error}");
        match victim {
            Victim::Server | Victim::Client => {
                let which = if *victim == Victim::Server { 0 } else { client };
                let killed = run.kill_party(which)?;
                run.replace(which)?;
                let known = run.all_know(which, killed).map_err(context)?;
                in_time(known, KNOWN_MAX).map_err(context)?;
                slowest = slowest.max(known);
            }
            Victim::Agent => {
                let before = taken_over(&run);
                run.kill_agent()?;
                run.for_a_while(gap)?;
                run.start_agent()?;
                all_go_over(&mut run, &before).map_err(context)?;
            }
            Victim::Both => {
                let mut before = taken_over(&run);
                before.remove(client);
                run.kill_agent()?;
                let killed = run.kill_party(client)?;
                run.start_agent()?;
                run.replace(client)?;
                all_go_over(&mut run, &before).map_err(context)?;
                let known = run.all_know(client, killed).map_err(context)?;
                in_time(known, KNOWN_MAX_WITHOUT_AGENT).map_err(context)?;
                slowest_without = slowest_without.max(known);
            }
        }
        run.all_up().map_err(context)?;
        run.all_alive().map_err(context)?;
        if (round + 1) % 10 == 0 {
            println!("{} of {times} kills, longest {slowest:?}", round + 1);
        }
    }
    for (party, before) in before.iter().enumerate() {
        same_holdings(&mut run, party, before)?;
    }
    let totals = run.end()?;
    Ok(format!(
        "{times} kills, {} messages; peers knew after {:.1} ms at most, {:.1} s when there was no agent; \
         nothing stays behind",
        totals.messages,
        slowest.as_secs_f64() * 1e3,
        slowest_without.as_secs_f64(),
    ))
}

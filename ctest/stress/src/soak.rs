//! Everything at once for a given time: 64 VIs of one process, connected with those of two others, in all
//! levels and all ways of waiting, with RDMA, partings, and the death of one of the others now and then.

use std::time::{Duration, Instant};

use crate::dice::Dice;
use crate::link::{Mode, Spec};
use crate::supervisor::{Run, Setting};

const LINKS: usize = 64;
/// The first process has all links; each of the others has half of them.
const HOME: usize = 0;
const OTHERS: usize = 2;
/// The time between two deaths.
const KILL_EVERY: Duration = Duration::from_secs(1);

fn star(levels: &[u16], dice: &mut Dice) -> Vec<Vec<Spec>> {
    let mut parties = vec![Vec::new(); 1 + OTHERS];
    for id in 0..LINKS {
        let server = dice.roll(2) == 0;
        for (party, server) in [(HOME, server), (1 + id % OTHERS, !server)] {
            parties[party].push(Spec {
                id,
                server,
                at: None,
                level: levels[id / OTHERS % levels.len()],
                mode: Mode::ALL[dice.roll(Mode::ALL.len() as u64) as usize],
            });
        }
    }
    parties
}

/// Runs it; gives the line that sums it up.
pub(crate) fn run(setting: Setting, time: Duration) -> Result<String, String> {
    let mut dice = Dice::new(setting.seed);
    let parties = star(&setting.levels, &mut dice);
    let start = Instant::now();
    let mut run = Run::start(setting, parties)?;
    run.all_up()?;
    let mut kills = 0;
    while start.elapsed() < time {
        let left = time.saturating_sub(start.elapsed());
        run.for_a_while(left.min(KILL_EVERY))?;
        run.all_alive()?;
        if start.elapsed() < time {
            // The last one, so that the links of the first one last as long as the run.
            run.kill_party(OTHERS)?;
            run.replace(OTHERS)?;
            kills += 1;
            run.all_alive()?;
        }
        let totals = run.totals();
        println!(
            "{:.0} s: {} messages",
            start.elapsed().as_secs_f64(),
            totals.messages
        );
    }
    let totals = run.end()?;
    Ok(format!(
        "{} messages, {} MiB, {} RDMA operations, {} disconnects, {kills} kills, wrong bytes 0",
        totals.messages,
        totals.bytes >> 20,
        totals.rdma,
        totals.partings,
    ))
}

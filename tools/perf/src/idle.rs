//! `idle`: how often the threads of a process wake up that has a connection, has sent a message over it and does
//! nothing more.
//!
//! A voluntary context switch is a sleep, and each sleep ends with a wake-up. Every device is measured in processes of
//! its own, so that the threads of one are not counted for another.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use vipl_client::Library;
use vipl_tools::{Result, host};

use crate::bench::{Bench, Figure, Params, figure};
use crate::fresh::Fresh;
use crate::machine::Session;
use crate::many::{Many, ask_peer};
use crate::usage;

/// Lengths of a run that it takes until both processes are idle, and that they are watched for.
const SETTLING: u32 = 6;
const WATCHED: u32 = 12;

/// The test.
pub(crate) struct Idle {
    params: Params,
}

impl Idle {
    pub(crate) fn open(params: Params) -> Self {
        Self { params }
    }
}

impl Bench for Idle {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let vi = self.params.vi(session)?;
        let mut many = Many::new(session, 1)?;
        let first = ask_peer(session, "connect", vi, 1)?;
        many.connect(session, vi, 1, first, None)?;
        many.send_each()?;
        std::thread::sleep(self.params.time * SETTLING);
        let time = self.params.time * WATCHED;
        let theirs = of_peer(session)?;
        let own = usage::sleeps();
        std::thread::sleep(time);
        let mut all = since(&own, &usage::sleeps());
        for (name, sleeps) in since(&theirs, &of_peer(session)?) {
            *all.entry(name).or_default() += sleeps;
        }
        drop(many);
        session.end()?;
        Ok(figures(all, time))
    }
}

type Sleeps = BTreeMap<String, u64>;

fn of_peer(session: &mut Session) -> Result<Sleeps> {
    let answer = session.ask(&serde_json::json!({"op": "sleeps"}))?;
    let all = answer.as_object().into_iter().flatten();
    Ok(all
        .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
        .collect())
}

/// Without the one sleep of the main thread that the measurement itself takes.
fn since(before: &Sleeps, after: &Sleeps) -> Sleeps {
    let of_main = |name: &str| u64::from(name == env!("CARGO_BIN_NAME"));
    let all = after.iter().map(|(name, count)| {
        let own = before.get(name).copied().unwrap_or(0) + of_main(name);
        (name.clone(), count.saturating_sub(own))
    });
    all.collect()
}

/// Wake-ups a second of one of the two processes, and of its threads.
fn figures(sleeps: Sleeps, time: Duration) -> Vec<Figure> {
    let rate = |count: u64| count as f64 / 2.0 / time.as_secs_f64();
    let all = figure("wake-ups", rate(sleeps.values().sum()), "/s");
    let threads = sleeps
        .into_iter()
        .map(|(name, count)| figure(name, rate(count), "/s"));
    std::iter::once(all).chain(threads).collect()
}

/// The devices that the library names.
pub(crate) fn devices(vipl: &Library) -> Vec<String> {
    let devices = host::describe(vipl, "devices");
    let devices = devices.as_ref().and_then(Value::as_array);
    let names = devices.into_iter().flatten().map(|device| &device["name"]);
    names
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect()
}

/// Measures the device in two fresh processes.
pub(crate) fn in_fresh_processes(fresh: &Fresh, time: Duration) -> Result<Vec<Figure>> {
    let seconds = time.as_secs_f64().to_string();
    let words = ["idle", "--self", "--seconds", &seconds];
    Fresh::figures(fresh.command(&words)?, "idle")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_by_name_without_the_measurement_itself() {
        let sleeps = |all: &[(&str, u64)]| -> Sleeps {
            all.iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        let before = sleeps(&[("vip_perf", 7), ("vipl-agent", 3)]);
        let after = sleeps(&[("vip_perf", 8), ("vipl-agent", 13), ("late", 2)]);
        let found = since(&before, &after);
        assert_eq!(
            found,
            sleeps(&[("vip_perf", 0), ("vipl-agent", 10), ("late", 2)])
        );
        let figures = figures(found, Duration::from_secs(2));
        assert_eq!(figures[0], figure("wake-ups", 3.0, "/s"));
        assert_eq!(figures[2], figure("vip_perf", 0.0, "/s"));
    }
}

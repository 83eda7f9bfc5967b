//! Measuring one test: in this process, in processes that are started for it, or with the peer; and what it is
//! compared with.

use vipl_client::Library;
use vipl_tools::nic::Nic;
use vipl_tools::stats::median;
use vipl_tools::{Result, report, size, sys};

use crate::alone::Alone;
use crate::bench::{Bench, Figure, Measured, Params, Plan, repeat};
use crate::cli::{Job, Options};
use crate::company::Company;
use crate::kept::is_drawn;
use crate::machine::Session;
use crate::reference::Reference;
use crate::scale::{self, Game};
use crate::tests::Test;
use crate::{idle, library, memory, pinned, setup};

/// What was asked for, and the library.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) options: &'a Options,
    pub(crate) job: &'a Job,
    pub(crate) vipl: &'static Library,
}

/// One run of a test that needs no peer.
type Once<'a> = Box<dyn FnMut() -> Result<Vec<Figure>> + 'a>;

struct WithoutPeer<'a>(Once<'a>);

impl Bench for WithoutPeer<'_> {
    fn run(&mut self, _session: &mut Session) -> Result<Vec<Figure>> {
        self.0()
    }
}

impl Context<'_> {
    /// A test with each size and number of processes that was asked for.
    pub(crate) fn variants(&self, test: Test, nic: &Nic) -> Result<Vec<Params>> {
        let most = usize::try_from(nic.attributes().transfer_max).unwrap_or(usize::MAX);
        let sizes = match &self.options.size {
            Some(text) => size::parse_list(text, most.min(4 << 20))?,
            // A curve needs points, also below half of the peak.
            None if self.options.draws() && is_drawn(test.name()) => {
                size::powers(8, most.min(65536))
            }
            None => test.sizes(),
        };
        let processes: &[usize] = match test {
            Test::Scale => &self.options.processes,
            _ => &[0],
        };
        let with = |bytes: usize| {
            let params = self.job.params;
            processes.iter().map(move |processes| Params {
                bytes,
                processes: *processes,
                ..params
            })
        };
        Ok(sizes.into_iter().flat_map(with).collect())
    }

    /// Measures one test: one result for each placement of the processors that came up, and of `idle` for each device.
    pub(crate) fn measure(
        &self,
        test: Test,
        session: Option<&mut Session>,
        nic: &Nic,
        params: Params,
    ) -> Result<Vec<Measured>> {
        match test {
            Test::IdleMemory
                if !self.options.fresh && (self.options.alone || self.options.table) =>
            {
                return self.memory(params).map(|measured| vec![measured]);
            }
            Test::Idle if !self.options.fresh => return self.idle(params),
            _ => {}
        }
        let runs = match test {
            Test::IdleMemory | Test::Idle | Test::Scale => 1,
            _ => self.job.runs,
        };
        let bytes = (!test.is_sizeless()).then_some(params.bytes);
        let Some(session) = session else {
            let once = self.without_peer(test, nic, params)?;
            return collect(test, bytes, runs, median, once).map(|measured| vec![measured]);
        };
        let references = self.references(session, test, params.bytes);
        let cpus = Company::processors(self.job.pins());
        let plan = Plan {
            runs,
            references: &references,
            strict: self.options.compares(),
            shows_line: self.options.compares() && !self.between_hosts(),
            most: self.job.params.iterations,
            company: if test == Test::Company { &cpus } else { &[] },
        };
        let mut bench: Box<dyn Bench> = if test.is_alone() {
            Box::new(WithoutPeer(self.without_peer(test, nic, params)?))
        } else {
            test.open(session, params, &cpus)?
        };
        let measured = repeat(test.name(), bytes, bench.as_mut(), session, plan)?;
        bench.close(session)?;
        Ok(measured)
    }

    /// A test that needs no peer, or starts its peers itself.
    fn without_peer<'a>(&'a self, test: Test, nic: &Nic, params: Params) -> Result<Once<'a>> {
        let device = self.options.device();
        let fresh = self.job.fresh(self.options, device);
        Ok(match test {
            Test::Open if self.options.fresh => {
                Box::new(move || setup::open_once(self.vipl, device))
            }
            Test::Open => Box::new(move || setup::open(&fresh)),
            Test::Library => {
                let fresh = self.job.fresh_pair(self.options, device);
                Box::new(move || library::measure(&fresh, params))
            }
            Test::Pinned => Box::new(move || pinned::wait(&fresh, self.job.cpus, params)),
            Test::Scale => Box::new(move || {
                let game = Game {
                    params,
                    ..self.job.game(self.options)
                };
                // The processes inherit what this one may use.
                sys::run_on_all()?;
                let figures = scale::measure(self.vipl, device, game, params.processes);
                if let Some(cpus) = self.job.pins() {
                    sys::run_on(cpus.0)?;
                }
                figures
            }),
            _ => {
                let alone = Alone::open(nic, params, test)?;
                Box::new(move || alone.run_once())
            }
        })
    }

    /// Memory: the most that any of the runs took, each in fresh processes.
    pub(crate) fn memory(&self, params: Params) -> Result<Measured> {
        let fresh = self.job.fresh_pair(self.options, self.options.device());
        let unset = self.job.memory_unset();
        let once = || memory::in_fresh_processes(&fresh, params.vis, unset);
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        collect(Test::IdleMemory, None, self.job.runs, most, once)
    }

    /// Wake-ups of every device, or of the one that was asked for.
    fn idle(&self, params: Params) -> Result<Vec<Measured>> {
        let devices = match &self.options.device {
            Some(device) => vec![device.clone()],
            None if self.options.table => vec![self.options.device().to_owned()],
            None => idle::devices(self.vipl),
        };
        let mut all = Vec::new();
        for device in &devices {
            let fresh = self.job.fresh_pair(self.options, device);
            let once = || idle::in_fresh_processes(&fresh, params.time);
            match collect(Test::Idle, None, 1, median, once) {
                Ok(measured) => all.push(Measured {
                    device: Some(device.clone()),
                    ..measured
                }),
                // A device may need a peer on another host.
                Err(error) if devices.len() > 1 => {
                    report::note(&format!("idle: {device} is left out: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Whether figures are compared with those of an interface.
    fn between_hosts(&self) -> bool {
        self.options.netns.is_some()
    }

    /// What a test is compared with: as asked for, and as far as it is possible here. The time of a cache line shows
    /// where the two processors are, and is measured between all processes of one machine.
    fn references(&self, session: &Session, test: Test, bytes: usize) -> Vec<Reference> {
        let Some(own) = session.local() else {
            return Vec::new();
        };
        let mut references = vec![Reference::CacheLine];
        if self.options.compares() {
            references.extend(match own.cable {
                None => test.limits(bytes),
                Some(_) => test.cable_limits(),
            });
        }
        if let Some(peers) = &own.peers {
            let there = test.peers(bytes).iter().filter(|peer| peers.has(**peer));
            references.extend(there.map(|peer| Reference::Peer(*peer)));
        }
        // Two processes that poll on one processor would take turns by the millisecond.
        let shared = self.job.cpus.0 == self.job.cpus.1;
        references.retain(|reference| !(shared && reference.takes_two_cpus()));
        references
    }
}

/// Repeats what needs no peer; `pick` chooses among the values of the runs.
fn collect(
    test: Test,
    bytes: Option<usize>,
    runs: usize,
    pick: impl Fn(&[f64]) -> f64,
    mut once: impl FnMut() -> Result<Vec<Figure>>,
) -> Result<Measured> {
    let all = (0..runs).map(|_| once()).collect::<Result<Vec<_>>>()?;
    Ok(Measured {
        test: test.name(),
        device: None,
        bytes,
        placement: None,
        figures: picked(&all, pick),
        bounds: Vec::new(),
        times: vipl_tools::stats::Histogram::default(),
        runs,
        discarded: 0,
        unsteady: false,
    })
}

fn picked(runs: &[Vec<Figure>], pick: impl Fn(&[f64]) -> f64) -> Vec<Figure> {
    let first = runs.first().cloned().unwrap_or_default();
    let figures = first.into_iter().enumerate().map(|(index, figure)| {
        let values: Vec<f64> = runs.iter().map(|run| run[index].value).collect();
        let value = pick(&values);
        Figure { value, ..figure }
    });
    figures.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure;

    #[test]
    fn memory_takes_the_worst_run() {
        let runs = [
            vec![figure("per pair", 9.0, "KiB")],
            vec![figure("per pair", 12.0, "KiB")],
        ];
        let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(picked(&runs, most)[0].value, 12.0);
        assert_eq!(picked(&runs, median)[0].value, 10.5);
    }
}

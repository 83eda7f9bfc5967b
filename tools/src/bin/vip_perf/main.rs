//! `vip_perf`: how fast VIPL is on this machine, absolutely and by the machine's own limits.

#![forbid(unsafe_code)]

mod alone;
mod bench;
mod cli;
mod cq;
mod latency;
mod many;
mod memory;
mod output;
mod overlap;
mod reference;
mod show;
mod stream;
mod table;
mod tests;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use vipl_tools::cable::Cable;
use vipl_tools::machine::NEEDS_SELF;
use vipl_tools::nic::Nic;
use vipl_tools::options::{self, Level};
use vipl_tools::peers::Peers;
use vipl_tools::report;
use vipl_tools::session::Session;
use vipl_tools::vipl::Vipl;
use vipl_tools::{Error, Result, host, size, sys};

use crate::bench::{Params, Plan};
use crate::cli::{Job, Options, conditions};
use crate::output::Output;
use crate::reference::Reference;
use crate::tests::Test;

fn main() -> ExitCode {
    vipl_tools::sys::end_with_the_reader();
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::failed("vip_perf", &error, options.json),
    }
}

/// What a server knows before it is told.
pub(crate) fn default_params() -> Params {
    Params {
        bytes: 0,
        level: Level::Delivery,
        transfer_max: None,
        window: 64,
        wait: false,
        iterations: None,
        time: Duration::from_millis(250),
        vis: 1,
    }
}

fn run(options: &Options) -> Result<()> {
    sys::raise_file_limit();
    if let Some(numbers) = &options.partner {
        return tests::serve(&mut Session::as_partner(numbers, Vipl::open)?);
    }
    let mut job = Job::new(options)?;
    options::allow_transfer(job.largest(options));
    let vipl = Vipl::open()?;
    if options.table {
        return run_table(options, &job, vipl);
    }
    let local = options.alone;
    if job.is_server(options) {
        let mut session = Session::listen(vipl, &options.device, options.port)?;
        sys::run_on(job.cpus.1)?;
        eprintln!("connected");
        return tests::serve(&mut session);
    }
    if job.tests.is_empty() {
        job.tests = vec![Test::Latency, Test::Bandwidth, Test::Rate];
    }
    if (options.limits || options.peers) && !local {
        return Err(Error::Usage(NEEDS_SELF.to_owned()));
    }
    let mut output = Output::new(options, vipl, &job)?;
    if !local && job.host.is_none() && job.tests.iter().all(|test| test.is_alone()) {
        run_alone(options, &job, vipl, &mut output)?;
    } else {
        run_with_partner(options, &job, vipl, &mut output)?;
    }
    output.finish()
}

fn run_alone(options: &Options, job: &Job, vipl: &'static Vipl, output: &mut Output) -> Result<()> {
    let nic = Nic::open(vipl, &options.device)?;
    sys::run_on(job.cpus.0)?;
    for test in &job.tests {
        for bytes in sizes(options, *test, &nic)? {
            let params = Params {
                bytes,
                ..job.params
            };
            output.add(tests::measure_alone(*test, &nic, params, job.runs)?);
        }
        output.flush()?;
    }
    Ok(())
}

fn run_with_partner(
    options: &Options,
    job: &Job,
    vipl: &'static Vipl,
    output: &mut Output,
) -> Result<()> {
    let device = &options.device;
    let mut session = match &job.host {
        Some(host) => {
            let session = Session::connect(vipl, device, host, options.port)?;
            sys::run_on(job.cpus.0)?;
            session
        }
        None if options.alone => {
            Session::with_partner(vipl, device, job.cpus, options.netns.as_deref())?
        }
        None => {
            return Err(Error::Usage(
                "this test needs a server: add --self, or the HOST of a running vip_perf"
                    .to_owned(),
            ));
        }
    };
    if options.limits && options.netns.is_some() {
        let (cable, why) = Cable::open(&mut session, device, options.any_interface)?;
        session.cable = Some(cable);
        if let Some(why) = why {
            eprintln!("TCP is not measured: {why}");
        }
    }
    if options.peers {
        session.peers = Some(find_peers(job));
    }
    for test in &job.tests {
        let sizes = sizes(options, *test, &session.nic)?;
        if *test == Test::IdleMemory && !options.fresh && options.alone {
            let arguments = job.memory_arguments(options, job.params.vis);
            output.add(tests::measure_memory(
                &arguments,
                job.memory_unset(),
                job.runs,
            )?);
            output.flush()?;
            continue;
        }
        for bytes in sizes {
            let params = Params {
                bytes,
                ..job.params
            };
            let references = references(options, job, &session, *test, bytes);
            let plan = Plan {
                runs: job.runs,
                references: &references,
                most: job.params.iterations,
            };
            match tests::measure(*test, &mut session, params, plan) {
                Ok(measured) => output.add(measured),
                // What the device cannot do is no reason to stop the other tests.
                Err(Error::Usage(reason)) if job.tests.len() > 1 => {
                    eprintln!("{}: skipped: {reason}", test.name());
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        output.flush()?;
    }
    Ok(())
}

/// Looks for other libraries' tools, and tells what there is.
fn find_peers(job: &Job) -> Peers {
    let peers = Peers::find(job.cpus);
    for line in peers.lines() {
        eprintln!("{line}");
    }
    peers
}

/// What a test is compared with: as asked for, and as far as it is possible here.
fn references(
    options: &Options,
    job: &Job,
    session: &Session,
    test: Test,
    bytes: usize,
) -> Vec<Reference> {
    let limits = match (options.limits || options.peers, &session.cable) {
        (true, None) => test.limits(bytes),
        (true, Some(_)) => test.cable_limits(),
        (false, _) => &[],
    };
    // Two processes that poll on one processor would take turns by the millisecond.
    let shared = job.cpus.0 == job.cpus.1;
    let mut references = limits.to_vec();
    if let Some(peers) = &session.peers {
        let there = test.peers(bytes).iter().filter(|peer| peers.has(**peer));
        references.extend(there.map(|peer| Reference::Peer(*peer)));
    }
    references.retain(|reference| !(shared && reference.takes_two_cpus()));
    references
}

fn run_table(options: &Options, job: &Job, vipl: &'static Vipl) -> Result<()> {
    let peers = options.peers.then(|| find_peers(job));
    let lines = table::chosen(options.lines.as_deref(), peers.as_ref())?;
    // Memory first, and in processes of its own: later the agent has memory to spare.
    let memory = table::needs_memory(&lines).then(|| {
        eprintln!("measuring memory, in separate processes ...");
        let arguments = job.memory_arguments(options, table::MEMORY_VIS);
        tests::measure_memory(&arguments, job.memory_unset(), job.runs)
    });
    let mut session = Session::with_partner(vipl, &options.device, job.cpus, None)?;
    session.peers = peers;
    let results = table::run(&mut session, job.params, job.runs, &lines, memory);
    if options.json {
        let machine = host::json(vipl);
        let document = json!({"machine": machine, "device": options.device,
            "cpus": [job.cpus.0, job.cpus.1], "table": table::json(&results)});
        return report::print(&format!("{document:#}\n"));
    }
    let mut head = format!("{}# {}\n", host::lines(vipl), conditions(options, job));
    for line in session.peers.iter().flat_map(Peers::lines) {
        head += &format!("# {line}\n");
    }
    report::print(&format!("{head}{}", table::text(&results)))
}

fn sizes(options: &Options, test: Test, nic: &Nic) -> Result<Vec<usize>> {
    let most = usize::try_from(nic.attributes().transfer_max).unwrap_or(usize::MAX);
    match &options.size {
        Some(text) => size::parse_list(text, most.min(4 << 20)),
        None => Ok(test.sizes()),
    }
}

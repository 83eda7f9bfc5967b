//! `vip_perf`: how fast VIPL is on this machine, absolutely and by the machine's own limits.

mod alone;
mod arena;
mod bench;
mod cable;
mod cli;
mod cq;
mod frames;
mod fresh;
mod latency;
mod limits;
mod link;
mod machine;
mod many;
mod memory;
mod output;
mod overlap;
mod peers;
mod pinned;
mod process_vm;
mod procmem;
mod random;
mod reference;
mod scale;
mod setup;
mod show;
mod stream;
mod table;
mod tcp;
mod tests;
mod udp;

use std::process::ExitCode;

use serde_json::json;
use vipl_client::Library;
use vipl_tools::nic::Nic;
use vipl_tools::options;
use vipl_tools::report;
use vipl_tools::session::needs_self;
use vipl_tools::{Error, Result, host, size, sys};

use crate::bench::{Params, Plan};
use crate::cable::Cable;
use crate::cli::{Job, Memory, Options, conditions};
use crate::machine::Session;
use crate::output::Output;
use crate::peers::Peers;
use crate::reference::Reference;
use crate::scale::Game;
use crate::tests::Test;

fn main() -> ExitCode {
    vipl_tools::sys::end_with_the_reader();
    let options = match vipl_cli::output::parse::<Options>() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(code) = options.generate.print::<Options>(1) {
        return code;
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::failed("vip_perf", &error, options.json),
    }
}

fn run(options: &Options) -> Result<()> {
    sys::raise_file_limit();
    if let Some(numbers) = &options.peer {
        return tests::serve(&mut Session::as_peer(numbers, host::library)?).map(drop);
    }
    let mut job = Job::new(options)?;
    options::allow_transfer(job.largest(options));
    if options.memory == Memory::Library {
        vipl_tools::region::use_library_memory();
    }
    if let Some(member) = &options.member {
        return scale::member(member, host::library, &options.device, job.game(options));
    }
    if job.is_server(options) {
        let (device, memory) = (&options.device, options.terms.memory()?);
        let listen = |came: &dyn Fn()| {
            let session = Session::listen(host::library()?, device, options.port, memory, came)?;
            if let Some(cpus) = job.pins() {
                sys::run_on(cpus.1)?;
            }
            eprintln!("connected");
            Ok(session)
        };
        return options.terms.serve(listen, tests::serve);
    }
    let vipl = host::library()?;
    if options.table {
        return run_table(options, &job, vipl);
    }
    let local = options.alone;
    if job.tests.is_empty() {
        job.tests = vec![Test::Latency, Test::Bandwidth, Test::Rate];
    }
    if (options.limits || options.peers) && !local {
        return Err(needs_self());
    }
    let mut output = Output::new(options, vipl, &job)?;
    if options.fresh && job.tests == [Test::Open] {
        let once = || setup::open_once(vipl, &options.device);
        output.add(tests::measure_apart(Test::Open, job.params, 1, once)?);
        output.flush()?;
        return output.finish();
    }
    if !local && job.host.is_none() && job.tests.iter().all(|test| test.is_alone()) {
        run_alone(options, &job, vipl, &mut output)?;
    } else {
        run_with_peer(options, &job, vipl, &mut output)?;
    }
    output.finish()
}

fn run_alone(
    options: &Options,
    job: &Job,
    vipl: &'static Library,
    output: &mut Output,
) -> Result<()> {
    let nic = Nic::open(vipl, &options.device)?;
    if let Some(cpus) = job.pins() {
        sys::run_on(cpus.0)?;
    }
    for test in &job.tests {
        for bytes in sizes(options, *test, &nic)? {
            let params = Params {
                bytes,
                ..job.params
            };
            if test.is_apart() {
                measure_apart(options, job, vipl, (*test, params), output)?;
            } else {
                output.add(tests::measure_alone(*test, &nic, params, job.runs)?);
            }
        }
        output.flush()?;
    }
    Ok(())
}

/// Measures what needs processes of its own, while this one keeps the Kernel Agent running.
fn measure_apart(
    options: &Options,
    job: &Job,
    vipl: &'static Library,
    (test, params): (Test, Params),
    output: &mut Output,
) -> Result<()> {
    let fresh = job.fresh(options);
    match test {
        Test::Scale => {
            let game = Game {
                params,
                ..job.game(options)
            };
            // The processes inherit what this one may use.
            sys::run_on_all()?;
            for processes in &options.processes {
                let once = || scale::measure(vipl, &options.device, game, *processes);
                output.add(tests::measure_apart(test, params, 1, once)?);
            }
            if let Some(cpus) = job.pins() {
                sys::run_on(cpus.0)?;
            }
        }
        Test::Pinned => {
            let once = || pinned::wait(&fresh, job.cpus, params);
            output.add(tests::measure_apart(test, params, job.runs, once)?);
        }
        _ => {
            let once = || setup::open(&fresh);
            output.add(tests::measure_apart(test, params, job.runs, once)?);
        }
    }
    Ok(())
}

fn run_with_peer(
    options: &Options,
    job: &Job,
    vipl: &'static Library,
    output: &mut Output,
) -> Result<()> {
    let device = &options.device;
    let mut session = match &job.host {
        Some(host) => {
            let session = Session::connect(vipl, device, host, options.port)?;
            if let Some(cpus) = job.pins() {
                sys::run_on(cpus.0)?;
            }
            session
        }
        None if options.alone => {
            Session::with_peer(vipl, device, job.pins(), options.netns.as_deref())?
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
        session.own()?.cable = Some(cable);
        if let Some(why) = why {
            report::note(&format!("TCP is not measured: {why}"));
        }
    }
    if options.peers {
        session.own()?.peers = Some(find_peers(job));
    }
    for test in &job.tests {
        let sizes = sizes(options, *test, &session.nic)?;
        if *test == Test::IdleMemory && !options.fresh && options.alone {
            output.add(tests::measure_memory(
                &job.fresh_pair(options),
                job.params.vis,
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
            if test.is_apart() {
                measure_apart(options, job, vipl, (*test, params), output)?;
                continue;
            }
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
                    report::note(&format!("{}: skipped: {reason}", test.name()));
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        output.flush()?;
    }
    Ok(())
}

/// Finds the tools of other libraries, and reports which are installed.
fn find_peers(job: &Job) -> Peers {
    let peers = Peers::find(job.cpus);
    for line in peers.lines() {
        report::note(&line);
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
    let own = session.local();
    let cable = own.and_then(|own| own.cable.as_ref());
    let limits = match (options.limits || options.peers, cable) {
        (true, None) => test.limits(bytes),
        (true, Some(_)) => test.cable_limits(),
        (false, _) => &[],
    };
    // Two processes that poll on one processor would take turns by the millisecond.
    let shared = job.cpus.0 == job.cpus.1;
    let mut references = limits.to_vec();
    if let Some(peers) = own.and_then(|own| own.peers.as_ref()) {
        let there = test.peers(bytes).iter().filter(|peer| peers.has(**peer));
        references.extend(there.map(|peer| Reference::Peer(*peer)));
    }
    references.retain(|reference| !(shared && reference.takes_two_cpus()));
    references
}

fn run_table(options: &Options, job: &Job, vipl: &'static Library) -> Result<()> {
    let peers = options.peers.then(|| find_peers(job));
    let lines = table::chosen(options.lines.as_deref(), peers.as_ref())?;
    // Memory first, and in processes of its own: later the agent has memory to spare.
    let memory = table::needs_memory(&lines).then(|| {
        eprintln!("measuring memory, in separate processes ...");
        let fresh = job.fresh_pair(options);
        tests::measure_memory(&fresh, table::MEMORY_VIS, job.memory_unset(), job.runs)
    });
    let mut session = Session::with_peer(vipl, &options.device, job.pins(), None)?;
    session.own()?.peers = peers;
    let fresh = job.fresh(options);
    let apart = |test: Test, params: Params| {
        let once = || match test {
            Test::Pinned => pinned::wait(&fresh, job.cpus, params),
            _ => setup::open(&fresh),
        };
        tests::measure_apart(test, params, job.runs, once)
    };
    let results = table::run(&mut session, job.params, job.runs, &lines, memory, apart);
    if options.json {
        let machine = host::json(vipl);
        let document = json!({"machine": machine, "device": options.device,
            "cpus": [job.cpus.0, job.cpus.1], "table": table::json(&results)});
        return report::print(&format!("{document:#}\n"));
    }
    let mut head = format!("{}# {}\n", host::lines(vipl), conditions(options, job));
    let peers = session.local().and_then(|own| own.peers.as_ref());
    for line in peers.iter().flat_map(|peers| peers.lines()) {
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

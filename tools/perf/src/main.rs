//! `vip_perf`: how fast VIPL is on this machine, absolutely and by the machine's own limits.

mod alone;
mod axis;
mod bench;
mod cable;
mod chart;
mod cli;
mod company;
mod context;
mod cq;
mod duplex;
mod frames;
mod fresh;
mod idle;
mod kept;
mod latency;
mod legend;
mod library;
mod limits;
mod link;
mod machine;
mod many;
mod measured;
mod memory;
mod output;
mod overlap;
mod page;
mod peers;
mod picture;
mod pinned;
mod process_vm;
mod profiled;
mod random;
mod reference;
mod scale;
mod setup;
mod show;
mod stream;
mod table;
mod tcp;
mod tests;
mod threads;
mod udp;
mod usage;
mod whole;

use std::process::ExitCode;

use serde_json::json;
use vipl_client::Library;
use vipl_tools::nic::Nic;
use vipl_tools::options;
use vipl_tools::pin::Pair;
use vipl_tools::placement;
use vipl_tools::report;
use vipl_tools::session::needs_self;
use vipl_tools::{Error, Result, host, sys};

use crate::cable::Cable;
use crate::cli::{Job, Memory, Options, conditions};
use crate::context::Context;
use crate::machine::Session;
use crate::output::Output;
use crate::peers::Peers;
use crate::picture::Pictures;
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
    if options.computes {
        company::compute();
    }
    sys::raise_file_limit();
    if let Some(numbers) = &options.peer {
        return tests::serve(&mut Session::as_peer(numbers, host::library)?).map(drop);
    }
    let pictureless = |option| Error::Usage(format!("{option} needs --plot or --report"));
    if let Some(file) = &options.from {
        return Pictures::new(options)?
            .ok_or_else(|| pictureless("--from"))?
            .draw(&kept::read(file)?);
    }
    if options.compare.is_some() && !options.draws() {
        return Err(pictureless("--compare"));
    }
    let mut job = Job::new(options)?;
    options::allow_transfer(job.largest(options));
    if options.memory == Memory::Library {
        vipl_tools::region::use_library_memory();
    }
    if let Some(member) = &options.member {
        return scale::member(member, host::library, options.device(), job.game(options));
    }
    if job.is_server(options) {
        let (device, memory) = (options.device(), options.terms.memory()?);
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
    if job.tests.is_empty() {
        // The rate has no picture.
        job.tests = vec![Test::Latency, Test::Bandwidth];
        job.tests.extend((!options.draws()).then_some(Test::Rate));
    }
    let local = options.alone || options.table;
    if options.compares() && !local {
        return Err(needs_self());
    }
    // Before the library is opened: it costs less in a process without other threads.
    let pairs = match options.compares() && options.cpu.is_none() {
        true => placement::pairs()?,
        false => vec![job.cpus],
    };
    let vipl = host::library()?;
    if options.table {
        return run_table(options, &job, &pairs, vipl);
    }
    let mut output = Output::new(options, vipl, &job)?;
    let alone = !local && job.host.is_none() && job.tests.iter().all(|test| test.starts_peers());
    for cpus in pairs {
        let job = job.on(cpus);
        let context = Context {
            options,
            job: &job,
            vipl,
        };
        if alone {
            let nic = Nic::open(vipl, options.device())?;
            if let Some(cpus) = job.pins() {
                sys::run_on(cpus.0)?;
            }
            run_tests(&context, None, &nic, &mut output)?;
        } else {
            let mut session = connect(&context)?;
            let nic = session.nic.clone();
            run_tests(&context, Some(&mut session), &nic, &mut output)?;
        }
    }
    output.finish()
}

/// Connects with the peer, which is started or is a server, and opens what its figures are compared with.
fn connect(context: &Context<'_>) -> Result<Session> {
    let Context { options, job, vipl } = *context;
    let device = options.device();
    let mut session = match &job.host {
        Some(host) => {
            let session = Session::connect(vipl, device, host, options.port)?;
            if let Some(cpus) = job.pins() {
                sys::run_on(cpus.0)?;
            }
            session
        }
        None if options.alone || options.table => {
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
    Ok(session)
}

fn run_tests(
    context: &Context<'_>,
    mut session: Option<&mut Session>,
    nic: &Nic,
    output: &mut Output,
) -> Result<()> {
    let tests = &context.job.tests;
    for test in tests {
        for params in context.variants(*test, nic)? {
            match context.measure(*test, session.as_deref_mut(), nic, params) {
                Ok(measured) => output.add(measured),
                // What the device cannot do is no reason to stop the other tests.
                Err(Error::Usage(reason)) if tests.len() > 1 => {
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

fn run_table(options: &Options, job: &Job, pairs: &[Pair], vipl: &'static Library) -> Result<()> {
    let found = options.peers.then(|| Peers::find(job.cpus));
    let lines = table::chosen(options.lines.as_deref(), found.as_ref())?;
    let mut results = table::Results::default();
    for cpus in pairs {
        let job = job.on(*cpus);
        let context = Context {
            options,
            job: &job,
            vipl,
        };
        // Memory first, and in processes of its own: later the agent has memory to spare.
        results.measure_memory(&context, &lines);
        let mut session = connect(&context)?;
        results.measure(&context, &mut session, &lines);
    }
    if options.json {
        let pairs: Vec<_> = pairs.iter().map(|cpus| [cpus.0, cpus.1]).collect();
        let document = json!({"machine": host::json(vipl), "device": options.device(),
            "cpus": pairs[0], "pairs": pairs, "table": results.json()});
        return report::print(&format!("{document:#}\n"));
    }
    let mut head = format!("{}# {}\n", host::lines(vipl), conditions(options, job));
    for line in found.iter().flat_map(Peers::lines) {
        head += &format!("# {line}\n");
    }
    report::print(&format!("{head}{}", results.text()))
}

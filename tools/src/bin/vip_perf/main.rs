//! `vip_perf`: how fast VIPL is on this machine, absolutely and by the machine's own limits.

#![forbid(unsafe_code)]

mod alone;
mod bench;
mod cq;
mod latency;
mod many;
mod memory;
mod overlap;
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
use vipl_tools::pin::Pair;
use vipl_tools::report;
use vipl_tools::session::Session;
use vipl_tools::vipl::Vipl;
use vipl_tools::{Error, Result, host, size, sys};

use crate::bench::{Measured, Params, Plan};
use crate::tests::Test;

/// Measures latency, bandwidth, message rate and the overhead of the library.
///
/// Start the server without arguments, then the client with tests and the server's HOST. Or start both
/// with --self.
///
/// Tests: latency, bandwidth, rate, write (RDMA Write: write-latency and write-bandwidth), read (RDMA
/// Read), cq (polling a CQ with 1 active VI of --vis), idle-memory (memory of an idle pair of VIs),
/// register (VipRegisterMem and VipDeregisterMem), post (VipPostSend and VipSendDone without
/// transport), within (a message between two VIs of one thread, compared with loopback),
/// overlap (the share of the processor that a stream of RDMA Writes leaves to the program), all.
/// Register, post and within need no peer. Default: latency, bandwidth and rate.
#[derive(Parser)]
#[command(name = "vip_perf", version, max_term_width = 100)]
struct Options {
    /// Tests, and the host of the server: a name known to the name service, or an address
    #[arg(value_name = "TEST|HOST")]
    words: Vec<String>,

    /// Start both processes, each on its own CPU
    #[arg(long = "self")]
    alone: bool,

    /// Run the second process in this network namespace, which acts as another host (root only); start
    /// vip_perf itself in the first with `ip netns exec`. Each has its own Kernel Agent
    #[arg(
        long,
        value_name = "NAME",
        requires = "alone",
        conflicts_with = "table"
    )]
    netns: Option<String>,

    /// Device to open
    #[arg(short, long, env = "VIPL_DEVICE", default_value = options::DEVICE)]
    device: String,

    /// Message sizes in bytes: a list such as 8,4k,64k, or all [default: depends on the test]
    #[arg(short, long)]
    size: Option<String>,

    /// Messages or round trips per run [default: as many as fit --seconds]; also the maximum when
    /// measuring the limits of an interface
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,

    /// Length of a run in seconds
    #[arg(long, default_value_t = 0.25)]
    seconds: f64,

    /// Outstanding sends or RDMA operations
    #[arg(long, default_value_t = 64)]
    window: usize,

    /// Poll for completions (the default)
    #[arg(long, conflicts_with = "wait")]
    poll: bool,

    /// Wait for completions instead of polling
    #[arg(long)]
    wait: bool,

    /// Connected VIs for cq and idle-memory
    #[arg(long, default_value_t = 1000)]
    vis: usize,

    /// CPUs of the two processes [default: two on different cores]
    #[arg(long, value_name = "A,B")]
    cpu: Option<String>,

    /// Reliability level of the connections
    #[arg(short, long, value_enum, default_value_t = Level::Delivery)]
    reliability: Level,

    /// Runs of each test; the median is reported (for memory the maximum)
    #[arg(long, default_value_t = 5)]
    runs: usize,

    /// MaxTransferSize of the VIs [default: 64 KiB, or the message size if larger]
    #[arg(long, value_name = "BYTES")]
    transfer_max: Option<String>,

    /// Connection discriminator, the same on both sides
    #[arg(short, long, default_value_t = 5002)]
    port: u16,

    /// Compare with the limits of the machine, measured before and after each run; runs between which
    /// they changed by more than a quarter are discarded. With --netns, compare with raw frames and TCP
    /// on the interface. That saturates the link, so it must be a veth in a network namespace
    #[arg(long)]
    limits: bool,

    /// Measure the limits of any interface, even a real one, which is saturated
    #[arg(long, requires = "limits", requires = "netns")]
    any_interface: bool,

    /// Measure the nine figures by which the library is judged (implies --self and --limits)
    #[arg(long)]
    table: bool,

    /// Same as the test overlap
    #[arg(long)]
    overlap: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV, one figure per line
    #[arg(long)]
    csv: bool,

    /// The process was started for this test alone
    #[arg(long, hide = true)]
    fresh: bool,

    /// The second process of --self
    #[arg(long, hide = true)]
    partner: Option<String>,
}

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

/// The command line, understood.
struct Job {
    tests: Vec<Test>,
    host: Option<String>,
    params: Params,
    runs: usize,
    cpus: Pair,
    /// The setting for large messages was not the user's own.
    raised: bool,
}

impl Job {
    fn new(options: &Options) -> Result<Self> {
        let (mut tests, mut host) = (Vec::new(), None);
        for word in &options.words {
            match Test::named(word) {
                Some(found) => tests.extend(found),
                None if host.is_none() => host = Some(word.clone()),
                None => return Err(Error::Usage(format!("{word:?} is not a test"))),
            }
        }
        if options.overlap && !tests.contains(&Test::Overlap) {
            tests.push(Test::Overlap);
        }
        if options.alone && host.is_some() {
            let word = host.unwrap_or_default();
            return Err(Error::Usage(format!(
                "{word:?} is not a test, and --self takes no host"
            )));
        }
        let transfer_max = options
            .transfer_max
            .as_deref()
            .map(size::parse)
            .transpose()?;
        let raised = std::env::var_os(options::TRANSFER_VARIABLE).is_none();
        let params = Params {
            bytes: 0,
            level: options.reliability,
            transfer_max,
            window: options.window,
            wait: options.wait,
            iterations: options.iterations,
            time: Duration::try_from_secs_f64(options.seconds)
                .map_err(|_| Error::Usage("--seconds is not a valid duration".to_owned()))?,
            vis: options.vis.max(1),
        };
        let cpus = options
            .cpu
            .as_deref()
            .map_or_else(|| Ok(Pair::choose()), Pair::parse)?;
        Ok(Self {
            tests,
            host,
            params,
            runs: options.runs.max(1),
            cpus,
            raised,
        })
    }

    /// The largest message that will be sent.
    fn largest(&self, options: &Options) -> usize {
        if self.is_server(options) {
            return usize::MAX; // A client may ask for any size.
        }
        let asked = size::largest(options.size.as_deref());
        let for_table = if options.table { 1 << 20 } else { 0 };
        asked
            .max(self.params.transfer_max.unwrap_or(0))
            .max(for_table)
    }

    /// Whether this process waits for a client.
    fn is_server(&self, options: &Options) -> bool {
        self.tests.is_empty() && self.host.is_none() && !options.alone && !options.table
    }

    /// The options that idle-memory in fresh processes needs.
    fn memory_arguments(&self, options: &Options, vis: usize) -> Vec<String> {
        let level = match options.reliability {
            Level::Unreliable => "unreliable",
            Level::Delivery => "delivery",
            Level::Reception => "reception",
        };
        let cpus = format!("{},{}", self.cpus.0, self.cpus.1);
        let mut arguments: Vec<String> = ["-d", &options.device, "-r", level, "--cpu", &cpus]
            .map(str::to_owned)
            .to_vec();
        arguments.extend(["--vis".to_owned(), vis.to_string()]);
        if let Some(name) = &options.netns {
            arguments.extend(["--netns".to_owned(), name.clone()]);
        }
        if let Some(bytes) = self.params.transfer_max {
            arguments.extend(["--transfer-max".to_owned(), bytes.to_string()]);
        }
        arguments
    }

    fn memory_unset(&self) -> Option<&'static str> {
        self.raised.then_some(options::TRANSFER_VARIABLE)
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
    if options.limits && !local {
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
            let limits = match (options.limits, &session.cable) {
                (true, None) => test.limits(bytes),
                (true, Some(_)) => test.cable_limits(),
                (false, _) => &[],
            };
            // Two processes that poll on one processor would take turns by the millisecond.
            let shared = job.cpus.0 == job.cpus.1;
            let possible = limits.iter().filter(|l| !(shared && l.takes_two_cpus()));
            let limits: Vec<_> = possible.copied().collect();
            let plan = Plan {
                runs: job.runs,
                limits: &limits,
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

fn run_table(options: &Options, job: &Job, vipl: &'static Vipl) -> Result<()> {
    // Memory first, and in processes of its own: later the agent has memory to spare.
    eprintln!("measuring memory, in separate processes ...");
    let arguments = job.memory_arguments(options, table::MEMORY_VIS);
    let memory = tests::measure_memory(&arguments, job.memory_unset(), job.runs);
    let mut session = Session::with_partner(vipl, &options.device, job.cpus, None)?;
    let results = table::run(&mut session, job.params, job.runs, memory);
    if options.json {
        let machine = host::json(vipl);
        let document = json!({"machine": machine, "device": options.device,
            "cpus": [job.cpus.0, job.cpus.1], "table": table::json(&results)});
        report::print(&format!("{document:#}\n"))
    } else {
        report::print(&format!(
            "{}# {}\n{}",
            host::lines(vipl),
            conditions(options, job),
            table::text(&results)
        ))
    }
}

fn conditions(options: &Options, job: &Job) -> String {
    let level = vipl_tools::nic::level_names(options.reliability.bit());
    let (first, second) = (job.cpus.0, job.cpus.1);
    let mode = if options.wait { "waiting" } else { "polling" };
    format!(
        "{}, level {level}, CPUs {first} and {second}, {mode}",
        options.device
    )
}

fn sizes(options: &Options, test: Test, nic: &Nic) -> Result<Vec<usize>> {
    let most = usize::try_from(nic.attributes().transfer_max).unwrap_or(usize::MAX);
    match &options.size {
        Some(text) => size::parse_list(text, most.min(4 << 20)),
        None => Ok(test.sizes()),
    }
}

/// Collects results and prints them in the form that was asked for.
struct Output {
    form: Form,
    head: serde_json::Value,
    results: Vec<Measured>,
    pending: Vec<Measured>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
    Csv,
}

impl Output {
    fn new(options: &Options, vipl: &Vipl, job: &Job) -> Result<Self> {
        let form = match (options.json, options.csv) {
            (true, _) => Form::Json,
            (_, true) => Form::Csv,
            _ => Form::Text,
        };
        if form == Form::Text {
            let machine = host::lines(vipl);
            report::print(&format!("{machine}# {}\n", conditions(options, job)))?;
        }
        let head = json!({"machine": host::json(vipl), "device": options.device,
            "cpus": [job.cpus.0, job.cpus.1]});
        Ok(Self {
            form,
            head,
            results: Vec::new(),
            pending: Vec::new(),
        })
    }

    fn add(&mut self, measured: Measured) {
        self.pending.push(measured);
    }

    /// A test is complete.
    fn flush(&mut self) -> Result<()> {
        if self.form == Form::Text {
            report::print(&format!("\n{}\n", show::table(&self.pending).trim_end()))?;
        }
        self.results.append(&mut self.pending);
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        match self.form {
            Form::Text => Ok(()),
            Form::Csv => report::print(&show::csv(&self.results)),
            Form::Json => {
                let results: Vec<_> = self.results.iter().map(Measured::to_json).collect();
                self.head["results"] = json!(results);
                report::print(&format!("{:#}\n", self.head))
            }
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use clap::CommandFactory;

    fn job(arguments: &[&str]) -> Result<Job> {
        let all = std::iter::once("vip_perf").chain(arguments.iter().copied());
        Job::new(&Options::try_parse_from(all).unwrap())
    }

    #[test]
    fn options_are_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn words_are_tests_or_the_host() {
        let job = job(&["latency", "node7", "rate"]).unwrap();
        assert_eq!(job.tests, [Test::Latency, Test::Rate]);
        assert_eq!(job.host.as_deref(), Some("node7"));
    }

    #[test]
    fn a_namespace_is_for_two_processes_that_are_started_together() {
        let parse = |arguments: &[&str]| {
            let all = std::iter::once("vip_perf").chain(arguments.iter().copied());
            Options::try_parse_from(all)
        };
        let options = parse(&["--self", "--netns", "b", "idle-memory"]).unwrap();
        assert_eq!(options.netns.as_deref(), Some("b"));
        let arguments = Job::new(&options).unwrap().memory_arguments(&options, 3);
        assert!(arguments.windows(2).any(|two| two == ["--netns", "b"]));
        assert!(parse(&["--netns", "b", "latency"]).is_err());
        assert!(parse(&["--self", "--netns", "b", "--table"]).is_err());
        assert!(parse(&["--self", "--netns", "b", "--any-interface"]).is_err());
        assert!(parse(&["--self", "--limits", "--any-interface"]).is_err());
        let all = ["--self", "--netns", "b", "--limits", "--any-interface"];
        assert!(parse(&all).unwrap().any_interface);
    }

    #[test]
    fn two_hosts_or_a_host_with_self_are_refused() {
        assert!(job(&["latency", "node7", "node8"]).is_err());
        assert!(job(&["latancy", "--self"]).is_err());
    }

    #[test]
    fn large_messages_are_known_before_the_library_is_opened() {
        let largest = |arguments: &[&str]| {
            let all = std::iter::once("vip_perf").chain(arguments.iter().copied());
            let options = Options::try_parse_from(all).unwrap();
            Job::new(&options).unwrap().largest(&options)
        };
        assert_eq!(largest(&["--self"]), 0);
        assert_eq!(largest(&["latency", "node7"]), 0);
        assert_eq!(largest(&[]), usize::MAX);
        assert_eq!(largest(&["-s", "8,1m", "--self"]), 1 << 20);
        assert_eq!(largest(&["--table"]), 1 << 20);
        assert_eq!(largest(&["--transfer-max", "2m", "--self"]), 2 << 20);
    }
}

//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use vipl_cli::Generate;
use vipl_tools::options::{self, Level};
use vipl_tools::pin::Pair;
use vipl_tools::server::Terms;
use vipl_tools::{Error, Result, size};

use crate::bench::Params;
use crate::fresh::Fresh;
use crate::scale::{Game, Idle};
use crate::tests::Test;

/// Measures latency, bandwidth, message rate and the overhead of the library.
///
/// Start the server without arguments, then the client with tests and the server's HOST. Or start both
#[doc = " with --self. The server serves whoever can connect on DEVICE, until a client has finished."]
///
/// Tests: latency, bandwidth, bidirectional (streams in both directions at once, by one thread of each
/// process), threads (streams of --threads threads at each side), rate, write (RDMA Write: write-latency and write-bandwidth), read (RDMA
/// Read), library (RDMA Writes into memory of vipl_alloc, beside a cache line and beside messages),
/// company (a ping-pong beside a process that computes on each of the two CPUs: the mean, the median,
/// the 99th percentile and the worst, polling and waiting), profiled (a ping-pong under `perf record`,
/// its worst repetition), idle (wake-ups of an idle connected process, by thread, for every device), cq
/// (polling a CQ with 1 active VI of --vis), cq-random (messages on a random one of --vis VIs, one CQ),
/// connect (--vis connections, and VipDisconnect with all and with 10), idle-memory (memory of an idle
/// pair of VIs), register (VipRegisterMem and VipDeregisterMem), post (VipPostSend and VipSendDone
/// without transport), calls (each call of a message), within (a message between two VIs of one thread,
/// compared with loopback), open (VipOpenNic), pinned (VipRecvWait in processes that may use one CPU),
/// scale (all to all between --processes), overlap (the share of the processor that a stream of RDMA
/// Writes leaves to the program), all. Library, register, post, calls, within, open, pinned, scale and
/// idle need no peer. Default: latency, bandwidth and rate.
///
/// With --self each run is labelled near or far, by the time of a cache line between the two CPUs (below
/// 120 ns: near), and runs of both kinds are never mixed. Without --cpu, --limits, --peers and --table
/// choose a near pair of CPUs and a far one, if the machine has both.
#[derive(Parser)]
#[command(
    name = "vip_perf",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0: all tests were measured; 1: a call failed, the peer ended, or a file could not be read or \
                  written; 2: the command line is wrong"
)]
pub(crate) struct Options {
    /// Tests, and the host of the server: a name known to the name service, or an address
    #[arg(value_name = "TEST|HOST")]
    pub(crate) words: Vec<String>,

    /// Start both processes, each on its own CPU
    #[arg(long = "self")]
    pub(crate) alone: bool,

    /// Run the second process in this network namespace, which acts as another host (root only); start
    /// vip_perf itself in the first with `ip netns exec`. Each has its own Kernel Agent
    #[arg(
        long,
        value_name = "NAME",
        requires = "alone",
        conflicts_with = "table"
    )]
    pub(crate) netns: Option<String>,

    /// Device to open [default: /dev/via_lo; idle: every device]
    #[arg(short, long, env = "VIPL_DEVICE")]
    pub(crate) device: Option<String>,

    /// Message sizes in bytes: a list such as 8,4k,64k, or all [default: depends on the test]
    #[arg(short, long)]
    pub(crate) size: Option<String>,

    /// Messages or round trips per run [default: as many as fit --seconds]; also the maximum when
    /// measuring the limits of an interface
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,

    /// Length of a run in seconds
    #[arg(long, default_value_t = 0.25)]
    pub(crate) seconds: f64,

    /// Outstanding sends or RDMA operations
    #[arg(long, default_value_t = 64)]
    pub(crate) window: usize,

    /// Memory of the regions: of the program, or of vipl_alloc, which peers on this host map
    #[arg(long, value_enum, default_value = "program")]
    pub(crate) memory: Memory,

    /// Poll for completions (the default)
    #[arg(long, conflicts_with = "wait")]
    pub(crate) poll: bool,

    /// Wait for completions instead of polling
    #[arg(long)]
    pub(crate) wait: bool,

    /// Processes of scale: a list
    #[arg(long, default_value = "2,4,8", value_delimiter = ',')]
    pub(crate) processes: Vec<usize>,

    /// Call sched_yield after a poll of scale that finds nothing
    #[arg(long = "yield", conflicts_with = "wait")]
    pub(crate) give_way: bool,

    /// Threads of each process for threads
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub(crate) threads: u8,

    /// Connected VIs for cq, cq-random, connect and idle-memory
    #[arg(long, default_value_t = 1000)]
    pub(crate) vis: usize,

    /// CPUs of the two processes; all: do not pin them [default: two on different cores, see above].
    /// The processes of scale share all CPUs
    #[arg(long, value_name = "A,B")]
    pub(crate) cpu: Option<String>,

    /// Reliability level of the connections
    #[arg(short, long, value_enum, default_value_t = Level::Delivery)]
    pub(crate) reliability: Level,

    /// Runs of each test; the median is reported (for memory the maximum)
    #[arg(long, default_value_t = 5)]
    pub(crate) runs: usize,

    /// MaxTransferSize of the VIs [default: 64 KiB, or the message size if larger]
    #[arg(long, value_name = "BYTES")]
    pub(crate) transfer_max: Option<String>,

    /// Connection discriminator, the same on both sides
    #[arg(short, long, default_value_t = 5002)]
    pub(crate) port: u16,

    /// Compare with the limits of the machine, measured before and after each run; runs between which
    /// they changed by more than a quarter are discarded. With --netns, compare with raw frames, UDP and TCP
    /// on the interface. That saturates the link, so it must be a veth in a network namespace
    #[arg(long)]
    pub(crate) limits: bool,

    /// Measure the limits of any interface, even a real one, which is saturated
    #[arg(long, requires = "limits", requires = "netns")]
    pub(crate) any_interface: bool,

    /// Compare with other libraries: run ucx_perftest and fi_pingpong, where they are installed, on the
    /// same two CPUs, in turn with each run (implies --limits)
    #[arg(long, conflicts_with = "netns")]
    pub(crate) peers: bool,

    /// Measure the figures by which the library is judged (implies --self and --limits). With --peers,
    /// also those that are judged by another library
    #[arg(long)]
    pub(crate) table: bool,

    /// Lines of the table to measure, such as 1-4,9 [default: all]
    #[arg(long, requires = "table")]
    pub(crate) lines: Option<String>,

    /// Same as the test overlap
    #[arg(long)]
    pub(crate) overlap: bool,

    /// Draw latency and bandwidth over the size of messages, with n½, where half of the peak bandwidth is reached, and a
    /// histogram of latencies, into this SVG file. Limits and peers are drawn beside them if they are measured
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    pub(crate) plot: Option<PathBuf>,

    /// Write the same and all figures into this HTML file, which needs no other file
    #[arg(long, value_name = "FILE", conflicts_with = "table")]
    pub(crate) report: Option<PathBuf>,

    /// Draw another run beside this one, which was kept by --json
    #[arg(long, value_name = "FILE")]
    pub(crate) compare: Option<PathBuf>,

    /// Measure nothing, and draw a run that was kept by --json
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,

    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,

    /// Print CSV, one figure per line
    #[arg(long)]
    pub(crate) csv: bool,

    /// The process was started for this test alone
    #[arg(long, hide = true)]
    pub(crate) fresh: bool,

    /// A process of company that computes
    #[arg(long, hide = true)]
    pub(crate) computes: bool,

    /// A process of scale
    #[arg(long, hide = true)]
    pub(crate) member: Option<String>,

    /// The second process of --self
    #[arg(long, hide = true)]
    pub(crate) peer: Option<String>,

    #[command(flatten)]
    pub(crate) terms: Terms,

    #[command(flatten)]
    pub(crate) generate: Generate,
}

/// Whose memory regions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Memory {
    Program,
    Library,
}

impl Options {
    pub(crate) fn device(&self) -> &str {
        self.device.as_deref().unwrap_or(options::DEVICE)
    }

    /// Whether there will be pictures.
    pub(crate) fn draws(&self) -> bool {
        self.plot.is_some() || self.report.is_some()
    }

    /// Whether figures are compared with limits of the machine.
    pub(crate) fn compares(&self) -> bool {
        self.limits || self.peers || self.table
    }
}

/// The command line, understood.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) tests: Vec<Test>,
    pub(crate) host: Option<String>,
    pub(crate) params: Params,
    pub(crate) runs: usize,
    pub(crate) cpus: Pair,
    /// The processes stay on these CPUs.
    pub(crate) pinned: bool,
    /// The setting for large messages was not the user's own.
    pub(crate) raised: bool,
}

impl Job {
    pub(crate) fn new(options: &Options) -> Result<Self> {
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
            threads: usize::from(options.threads),
            processes: 0,
        };
        let cpu = options.cpu.as_deref();
        let pinned = cpu != Some("all");
        let cpus = match cpu {
            Some(text) if pinned => Pair::parse(text)?,
            _ => Pair::choose(),
        };
        Ok(Self {
            tests,
            host,
            params,
            runs: options.runs.max(1),
            cpus,
            pinned,
            raised,
        })
    }

    /// The largest message that will be sent.
    pub(crate) fn largest(&self, options: &Options) -> usize {
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
    pub(crate) fn is_server(&self, options: &Options) -> bool {
        self.tests.is_empty() && self.host.is_none() && !options.alone && !options.table
    }

    /// The same on these CPUs.
    pub(crate) fn on(&self, cpus: Pair) -> Self {
        Self {
            cpus,
            ..self.clone()
        }
    }

    /// The CPUs that the processes are kept on.
    pub(crate) fn pins(&self) -> Option<Pair> {
        self.pinned.then_some(self.cpus)
    }

    /// How processes are started that measure something for this one, on this device.
    pub(crate) fn fresh(&self, options: &Options, device: &str) -> Fresh {
        let level = match options.reliability {
            Level::Unreliable => "unreliable",
            Level::Delivery => "delivery",
            Level::Reception => "reception",
        };
        let mut arguments: Vec<String> = ["-d", device, "-r", level].map(str::to_owned).to_vec();
        if let Some(name) = &options.netns {
            arguments.extend(["--netns".to_owned(), name.clone()]);
        }
        if let Some(bytes) = self.params.transfer_max {
            arguments.extend(["--transfer-max".to_owned(), bytes.to_string()]);
        }
        Fresh { arguments }
    }

    /// The same for two processes on the two CPUs.
    pub(crate) fn fresh_pair(&self, options: &Options, device: &str) -> Fresh {
        let mut fresh = self.fresh(options, device);
        let cpus = format!("{},{}", self.cpus.0, self.cpus.1);
        fresh.arguments.extend(["--cpu".to_owned(), cpus]);
        fresh
    }

    /// How the processes of scale play.
    pub(crate) fn game(&self, options: &Options) -> Game {
        let idle = match (options.wait, options.give_way) {
            (true, _) => Idle::Wait,
            (_, true) => Idle::Yield,
            _ => Idle::Poll,
        };
        Game {
            params: self.params,
            idle,
            runs: self.runs,
        }
    }

    pub(crate) fn memory_unset(&self) -> Option<&'static str> {
        self.raised.then_some(options::TRANSFER_VARIABLE)
    }
}

pub(crate) fn conditions(options: &Options, job: &Job) -> String {
    let level = vipl_tools::nic::level_names(options.reliability.bit());
    let mode = match (options.wait, options.give_way) {
        (true, _) => "waiting",
        (_, true) => "polling, yielding",
        _ => "polling",
    };
    let cpus = match job.pins() {
        Some(Pair(first, second)) => format!("CPUs {first} and {second}"),
        None => "all CPUs".to_owned(),
    };
    format!("{}, level {level}, {cpus}, {mode}", options.device())
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
        let fresh = Job::new(&options)
            .unwrap()
            .fresh_pair(&options, "tulip:eth0");
        let arguments = fresh.arguments;
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

//! `vip_pingpong`: a ping-pong latency test between two processes. The client reports the results.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use serde_json::{Value, json};
use vipl_cli::{Generate, output};
use vipl_tools::options::{self, Level};
use vipl_tools::pin::Pair;
use vipl_tools::pingpong::{self, Driver, Outcome, Spec};
use vipl_tools::report::{self, Table, number};
use vipl_tools::request::Request;
use vipl_tools::server::{self, Served, Terms};
use vipl_tools::session::Session;
use vipl_tools::size;
use vipl_tools::{Error, Result, host, sys};

/// Tests a connection between two processes and measures its latency.
///
/// Start the server without HOST, then the client with the server's HOST. Or start both with --self.
#[doc = " The server serves whoever can connect on DEVICE, until a client has finished."]
#[derive(Parser)]
#[command(
    name = "vip_pingpong",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0: all round trips were made; 1: a call failed, the peer ended, or a byte was wrong; 2: the \
                  command line is wrong"
)]
struct Options {
    /// Host of the server: a name known to the name service (localhost), or an address
    host: Option<String>,

    /// Start both processes, each on its own CPU
    #[arg(long = "self", conflicts_with = "host")]
    alone: bool,

    /// Device to open
    #[arg(short, long, env = "VIPL_DEVICE", default_value = options::DEVICE)]
    device: String,

    /// Message sizes in bytes: a list such as 8,4k,64k, or all powers of two
    #[arg(short, long, default_value = "all")]
    size: String,

    /// Round trips per size, at least 1
    #[arg(short = 'n', long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,

    /// Round trips before the measurement
    #[arg(short, long, default_value_t = 1_000)]
    warmup: u64,

    /// Fill every message with different data and check every byte
    #[arg(short, long)]
    check: bool,

    /// Wait for messages (VipRecvWait) instead of polling (VipRecvDone)
    #[arg(short, long)]
    events: bool,

    /// Reliability level of the connection
    #[arg(short, long, value_enum, default_value_t = Level::Delivery)]
    reliability: Level,

    /// Connection discriminator, the same on both sides
    #[arg(short, long, default_value_t = 5001)]
    port: u16,

    /// Use RDMA Writes into memory that the peer polls
    #[arg(long)]
    rdma: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV, one size per line
    #[arg(long)]
    csv: bool,

    /// The second process of --self
    #[arg(long, hide = true)]
    peer: Option<String>,

    #[command(flatten)]
    terms: Terms,

    #[command(flatten)]
    generate: Generate,
}

fn main() -> ExitCode {
    sys::end_with_the_reader();
    let options = match output::parse::<Options>() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(code) = options.generate.print::<Options>(1) {
        return code;
    }
    sys::raise_file_limit();
    let waits = options.host.is_none() && !options.alone;
    // A client may ask for any size.
    options::allow_transfer(if waits {
        usize::MAX
    } else {
        size::largest(Some(&options.size))
    });
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::failed("vip_pingpong", &error, options.json),
    }
}

fn run(options: &Options) -> Result<()> {
    if let Some(numbers) = &options.peer {
        return serve(&mut Session::as_peer(numbers, host::library)?).map(drop);
    }
    let device = &options.device;
    match &options.host {
        None if options.alone => {
            let cpus = Pair::choose();
            if cpus.0 == cpus.1 {
                eprintln!("only one CPU: both processes share it, so the results mean little");
            }
            drive(
                options,
                &mut Session::with_peer(host::library()?, device, Some(cpus), None)?,
            )
        }
        None => {
            let listen = |came: &dyn Fn()| {
                let memory = options.terms.memory()?;
                let session =
                    Session::listen(host::library()?, device, options.port, memory, came)?;
                sys::run_on(Pair::choose().1)?;
                eprintln!("connected");
                Ok(session)
            };
            options.terms.serve(listen, serve)
        }
        Some(host) => {
            let mut session = Session::connect(host::library()?, device, host, options.port)?;
            sys::run_on(Pair::choose().0)?;
            drive(options, &mut session)
        }
    }
}

fn serve(session: &mut Session) -> Result<Served> {
    server::each(session, |session, request| match request {
        Request::PingPong(spec, channel) => pingpong::serve(session, spec, channel),
        _ => Err(Error::Refused(
            "vip_pingpong plays ping-pong only".to_owned(),
        )),
    })
}

const HEADINGS: [&str; 7] = [
    "bytes",
    "iterations",
    "MB/s",
    "mean µs",
    "p50 µs",
    "p99 µs",
    "messages/s",
];
/// What the three times are.
const MEANING: &str =
    "# one-way times, half of a round trip: mean of all, p50 and p99 of single messages\n";

fn drive(options: &Options, session: &mut Session) -> Result<()> {
    let nic = session.nic.attributes().clone();
    let text = !options.json && !options.csv;
    if text {
        let machine = host::lines(session.nic.library());
        let headings = line(&HEADINGS.map(str::to_owned));
        report::print(&format!(
            "{machine}# {}, {}\n{MEANING}{headings}\n",
            options.device,
            describe(options)
        ))?;
    }
    let largest = usize::try_from(nic.transfer_max)
        .unwrap_or(usize::MAX)
        .min(options::TRANSFER_USUAL);
    let mut results = Vec::new();
    for bytes in size::parse_list(&options.size, largest)? {
        let vi = options::vi_spec(&nic, options.reliability, bytes, None)?;
        let (wait, check) = (options.events, options.check);
        let spec = Spec {
            vi,
            bytes,
            wait,
            check,
            rdma: options.rdma,
        };
        let mut driver = Driver::open(session, spec)?;
        if options.warmup > 0 {
            driver.play(session, options.warmup)?;
        }
        let outcome = driver.play(session, options.iterations)?;
        driver.close(session)?;
        if text {
            report::print(&(line(&cells(bytes, &outcome)) + "\n"))?;
        }
        results.push((bytes, outcome));
    }
    if options.json {
        let document = document(options, host::json(session.nic.library()), &results);
        report::print(&format!("{document:#}\n"))?;
    }
    if options.csv {
        report::print(&csv(&results))?;
    }
    Ok(())
}

/// All results as one document; times are one way, in microseconds.
fn document(options: &Options, machine: Value, results: &[(usize, Outcome)]) -> Value {
    let rows = results.iter().map(|(bytes, outcome)| {
        let us = |ns: f64| ns / 1e3;
        json!({
            "bytes": bytes,
            "iterations": outcome.turns,
            "mb_per_s": *bytes as f64 / outcome.mean_ns() * 1e3,
            "one_way_us": {"mean": us(outcome.mean_ns()), "p50": us(outcome.p50_ns), "p99": us(outcome.p99_ns)},
            "messages_per_s": 1e9 / outcome.mean_ns(),
        })
    });
    json!({
        "machine": machine,
        "device": options.device,
        "conditions": describe(options),
        "results": rows.collect::<Vec<_>>(),
    })
}

fn csv(results: &[(usize, Outcome)]) -> String {
    let mut table = Table::new(&[
        "bytes",
        "iterations",
        "mb_per_s",
        "one_way_mean_us",
        "one_way_p50_us",
        "one_way_p99_us",
        "messages_per_s",
    ]);
    for (bytes, outcome) in results {
        table.row(cells(*bytes, outcome).to_vec());
    }
    table.csv()
}

fn describe(options: &Options) -> String {
    let mut words = vec![match options.reliability {
        Level::Unreliable => "unreliable",
        Level::Delivery => "reliable delivery",
        Level::Reception => "reliable reception",
    }];
    words.push(if options.rdma {
        "RDMA Write"
    } else {
        "send and receive"
    });
    words.push(if options.events { "waiting" } else { "polling" });
    if options.check {
        words.push("every byte checked");
    }
    words.join(", ")
}

fn cells(bytes: usize, outcome: &Outcome) -> [String; 7] {
    let us = |ns: f64| format!("{:.3}", ns / 1e3);
    [
        bytes.to_string(),
        outcome.turns.to_string(),
        number(bytes as f64 / outcome.mean_ns() * 1e3),
        us(outcome.mean_ns()),
        us(outcome.p50_ns),
        us(outcome.p99_ns),
        number(1e9 / outcome.mean_ns()),
    ]
}

/// One line of the table, which is printed while it grows.
fn line(cells: &[String; 7]) -> String {
    let mut table = Table::new(&["         ."; 7]);
    table.row(cells.to_vec());
    table.text().lines().nth(1).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn no_round_trips_at_all_are_refused() {
        assert!(Options::try_parse_from(["vip_pingpong", "-n", "0"]).is_err());
        assert!(Options::try_parse_from(["vip_pingpong", "-n", "1"]).is_ok());
    }

    #[test]
    fn lines_have_the_columns_of_the_heading() {
        let outcome = Outcome {
            median_ns: 100.0,
            p50_ns: 110.0,
            worst_ns: 0.0,
            p99_ns: 250.0,
            singles: 1000,
            turns: 1000,
            total_ns: 200_000.0,
        };
        let values = line(&cells(8, &outcome));
        let headings = line(&HEADINGS.map(str::to_owned));
        assert_eq!(values.chars().count(), headings.chars().count());
        let words: Vec<&str> = values.split_whitespace().collect();
        assert_eq!(
            words,
            ["8", "1000", "80.0", "0.100", "0.110", "0.250", "10000000"]
        );
    }
}

//! `vipstat`: what the processes of a host do with VIPL, from the pages that they publish.

mod document;
mod end;
mod filter;
mod find;
mod links;
mod model;
mod once;
mod prometheus;
mod screen;
mod server;
mod surroundings;
mod view;
mod words;

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use vipl_cli::{Generate, output};
use vipl_sys::clock::{now_ns, sleep};
use vipl_tools::{Error, Result, report};

use crate::filter::Filter;
use crate::find::Places;
use crate::model::{Model, ProcessNow, Sampler};
use crate::server::Server;
use crate::surroundings::Surroundings;

/// Shows what the processes of this host do with VIPL: NICs, VIs, completion queues, memory, errors. It reads what each process
/// publishes and does not disturb it. A user sees its own processes, root all.
#[derive(Parser, Debug)]
#[command(
    name = "vipstat",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0: shown; 1: nothing can be read, or with --last no process has ended; 2: the command line is wrong"
)]
struct Options {
    /// Print everything once as text, and exit
    #[arg(long)]
    once: bool,

    /// Print everything once as JSON, with the events of each VI
    #[arg(long)]
    json: bool,

    /// Show what a process that has ended was doing, the latest or the one with this process id
    #[arg(long, value_name = "PID", num_args = 0..=1)]
    last: Option<Option<u64>>,

    /// Serve the figures for Prometheus at this address, and show nothing
    #[arg(
        long,
        value_name = "ADDRESS",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:9477",
        conflicts_with_all = ["once", "json", "last"]
    )]
    prometheus: Option<SocketAddr>,

    /// Show this process only
    #[arg(short, long, value_name = "PID")]
    pid: Option<u64>,

    /// Show what has this text in a row, with what it belongs to and what belongs to it: a process and all it has, a NIC with its VIs, a VI with its process
    #[arg(
        short,
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,

    /// Seconds between two looks, 1 on the screen; --once and --json then look twice, and show rates
    #[arg(short, long, value_name = "SECONDS", value_parser = interval)]
    interval: Option<Duration>,

    /// Read the files in this folder, which the processes' setting `publish` names
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,

    #[command(flatten)]
    generate: Generate,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match (0.05..=3600.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("between 0.05 and 3600 seconds".to_owned()),
    }
}

fn main() -> ExitCode {
    vipl_tools::sys::end_with_the_reader();
    let options = match output::parse::<Options>() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(code) = options.generate.print::<Options>(1) {
        return code;
    }
    match run(&options).and_then(|text| report::print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::failed("vipstat", &error, options.json),
    }
}

fn run(options: &Options) -> Result<String> {
    let places = options.folder.clone().map_or(Places::Usual, Places::Folder);
    let mut sampler = Sampler::new(places);
    let filter = Filter::new(&options.filter);
    if let Some(pid) = options.last {
        let (model, others) = ended(&mut sampler, pid.or(options.pid), &filter)?;
        if options.json {
            return document::print(&model).map(|()| String::new());
        }
        return Ok(once::last(&model, &others, width()));
    }
    if let Some(address) = options.prometheus {
        let make = || {
            let mut model = sampler.look(now_ns())?;
            options.keep(&mut model);
            Ok(prometheus::text(&filter.of(&model)))
        };
        let server = Server::new(address, make);
        let server = server.map_err(|error| Error::io(format!("cannot serve {address}"), error))?;
        report::note(&format!("serving http://{}/metrics", server.address()));
        server.run();
    }
    let surroundings = Surroundings::default();
    let on_screen = !options.once && !options.json && std::io::stdout().is_terminal();
    if on_screen {
        let interval = options.interval.unwrap_or(Duration::from_secs(1));
        let shown = screen::run(&mut sampler, interval, &options.filter, |model| {
            options.keep(model);
            surroundings.add(model);
        });
        return shown
            .map(|()| String::new())
            .map_err(|error| Error::io("cannot use the terminal", error));
    }
    if let Some(interval) = options.interval {
        look(&mut sampler, options)?;
        sleep(interval);
    }
    let mut model = look(&mut sampler, options)?;
    if !surroundings.add(&mut model) {
        eprintln!("vipstat: the agent does not answer: is vipkad stopped?");
    }
    let found = filter.of(&model);
    if options.json {
        return document::print(&found).map(|()| String::new());
    }
    let is_narrowed = options.pid.is_some() || !options.filter.is_empty();
    Ok(once::text(&found, width(), is_narrowed))
}

fn look(sampler: &mut Sampler, options: &Options) -> Result<Model> {
    let model = sampler.look(now_ns());
    let mut model = model.map_err(|error| Error::io("cannot read the folder", error))?;
    options.keep(&mut model);
    Ok(model)
}

impl Options {
    /// Keeps the process that was asked for.
    fn keep(&self, model: &mut Model) {
        if let Some(pid) = self.pid {
            model.processes.retain(|process| process.seen.pid == pid);
        }
    }
}

/// The process that ended last, of those that the filter finds, or the one with this number; and the others that have ended, the
/// latest first.
fn ended(
    sampler: &mut Sampler,
    pid: Option<u64>,
    filter: &Filter,
) -> Result<(Model, Vec<ProcessNow>)> {
    let model = sampler.all(now_ns());
    let all = model.map_err(|error| Error::io("cannot read the folder", error))?;
    let mut model = filter.of(&all).into_owned();
    let mut ended = std::mem::take(&mut model.processes);
    ended.retain(|process| process.end.is_some());
    ended.sort_by_key(|process| Reverse(process.end.map(|end| end.time)));
    let is_it = |process: &ProcessNow| pid.is_none_or(|pid| process.seen.pid == pid);
    let Some(place) = ended.iter().position(is_it) else {
        return Err(Error::Usage(nothing_left(pid, &ended, &all)));
    };
    model.processes = vec![ended.remove(place)];
    Ok((model, ended))
}

/// Why there is no process to show.
fn nothing_left(pid: Option<u64>, ended: &[ProcessNow], all: &Model) -> String {
    const WHY: &str = "one that has closed its NICs leaves none, and the next process that starts keeps those of the latest eight";
    let mut all = all.processes.iter();
    let Some(pid) = pid else {
        return match all.any(|process| process.end.is_some()) {
            true => "the filter finds no process that has left its pages".to_owned(),
            false => format!("no process has left its pages: {WHY}"),
        };
    };
    if all.any(|process| process.seen.pid == pid && process.seen.runs) {
        return format!("process {pid} has not ended; vipstat --pid {pid} shows it");
    }
    let name = |process: &ProcessNow| {
        let program = words::program(&process.seen.pages.process.program);
        format!("{} {program}", process.seen.pid)
    };
    let others: Vec<String> = ended.iter().map(name).collect();
    let others = match others.is_empty() {
        true => "there are none".to_owned(),
        false => format!("there are those of {}", others.join(", ")),
    };
    format!("process {pid} has left no pages: {WHY}; {others}")
}

/// The width of the terminal; without one, that of `COLUMNS`, or no limit.
fn width() -> usize {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    vipl_tools::sys::columns().or(columns).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        assert!(interval("0.5").is_ok());
        assert!(interval("0").is_err() && interval("nan").is_err() && interval("x").is_err());
    }
}

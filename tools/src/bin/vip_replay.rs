//! `vip_replay`: makes a recorded run of programs again, on any device, and compares what comes of it.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use vipl_cli::{Generate, output};
use vipl_tools::replay::{self, Plan, Report};

/// Makes a recorded run again and compares the results.
///
/// Record each process with VIPL_LAYERS=record and VIPL_RECORD_FILE, and give the files of all of them: they are played
/// in one process, with the calls in the order of then. Files of an earlier run stay where they were: those of several runs are refused.
#[derive(Parser)]
#[command(
    name = "vip_replay",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0: every result is as it was; 1: results differ; 2: a file cannot be read, the device does not \
                  open, or the command line is wrong"
)]
struct Options {
    /// Files of the layer record, one for each process of the run
    #[arg(required_unless_present = "generate")]
    files: Vec<PathBuf>,

    /// Open this device instead of those of the recording
    #[arg(short, long, env = "VIPL_DEVICE")]
    device: Option<String>,

    /// Seconds that a call may wait for others while none of them ends
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    patience: u64,

    /// Most MiB of memory for each recorded process, and of its file
    #[arg(long, default_value_t = 1024)]
    memory: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    generate: Generate,
}

fn main() -> ExitCode {
    let options: Options = match output::parse() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(code) = options.generate.print::<Options>(1) {
        return code;
    }
    let plan = Plan {
        files: options.files,
        device: options.device,
        patience: Duration::from_secs(options.patience),
        memory: options.memory.saturating_mul(1 << 20),
    };
    match replay::run(&plan) {
        Ok(report) => {
            let text = if options.json {
                json_of(&report)
            } else {
                text_of(&report)
            };
            match output::write(text.as_bytes()) {
                Ok(()) if report.count == 0 => ExitCode::SUCCESS,
                Ok(()) => ExitCode::from(1),
                Err(error) => output::ended(Err(error)),
            }
        }
        Err(error) => {
            eprintln!("vip_replay: {error}");
            ExitCode::from(2)
        }
    }
}

fn text_of(report: &Report) -> String {
    let mut text = String::new();
    for line in &report.notes {
        text += &format!("note: {line}\n");
    }
    for line in &report.differences {
        text += &format!("{line}\n");
    }
    for (reason, times) in &report.left {
        text += &format!("not made again: {times} calls: {reason}\n");
    }
    if report.early > 0 {
        let early = report.early;
        text += &format!(
            "early: {early} waits that found nothing then find what a later call took; that call gets it\n"
        );
    }
    text + &format!(
        "{} calls made again, {} differences\n",
        report.made, report.count
    )
}

fn json_of(report: &Report) -> String {
    let value = json!({
        "made": report.made,
        "left": report.left,
        "early": report.early,
        "notes": report.notes,
        "differences": report.differences,
        "count": report.count,
    });
    value.to_string() + "\n"
}

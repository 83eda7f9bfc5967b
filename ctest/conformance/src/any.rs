//! `vip_conform`: the suite on any plug-in, by the programs that are installed with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use vipl_cli::{Generate, output};
use vipl_client::Library;
use vipl_ctest::Installed;

use crate::class::Class;
use crate::keeper::{self, Kept};
use crate::page::{self, Column};
use crate::plan::{self, Planned, RUST_TESTS};
use crate::provider::{ALL, NONE, ONE_WAY, Provider, UNMAPPING};
use crate::results::Results;
use crate::run::{Outcome, Ways};
use crate::verdict::Verdict;
use crate::{assertions, probe, report, results, run};

/// Checks whether a plug-in does what the specification says.
///
/// Runs the conformance programs that the plug-in's abilities call for, as VipQueryNic and a few tries show them, and prints
/// assertions and rows of the error table as CONFORMANCE.md has them (in share/doc/vipl, for Debian in share/doc/vipl-doc).
#[derive(Parser)]
#[command(
    name = "vip_conform",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0: nothing has failed; 1: an assertion has failed; 2: the plug-in could not be tested, no \
                  run matches, or the command line is wrong"
)]
struct Options {
    /// The plug-in, a file libvipl_NAME.so
    #[arg(long, value_name = "FILE", required_unless_present_any = ["generate", "list"])]
    plugin: Option<PathBuf>,

    /// What follows NAME: in the name of the device that is opened
    #[arg(
        long,
        value_name = "ARG",
        default_value = "",
        hide_default_value = true
    )]
    device: String,

    /// The device pins registered memory: what is unmapped while it is registered stays in use
    #[arg(long)]
    pins: bool,

    /// How many programs run at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,

    /// A run of which no process does anything for so many seconds is ended, and has failed; so is a plug-in that does not
    /// say what it can do
    #[arg(long, value_name = "SECONDS", default_value_t = run::IDLE.as_secs())]
    patience: u64,

    /// Only runs whose name contains one of these; assertions are not judged then
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    filter: Vec<String>,

    /// Print the names of the runs, what each has to show, and what that means; run nothing. Without --plugin: all runs
    #[arg(long)]
    list: bool,

    /// Print all that is known about a run that fails
    #[arg(short, long)]
    verbose: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The folder of the conformance programs, instead of ../libexec/vipl/conform beside this program's folder
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,

    /// The process that asks the plug-in what it can do
    #[arg(long, hide = true)]
    probe: bool,

    #[command(flatten)]
    generate: Generate,
}

/// Runs `vip_conform`.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = keeper::keep() {
        return code;
    }
    let options = match output::parse::<Options>() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(code) = options.generate.print::<Options>(1) {
        return code;
    }
    if options.probe {
        let file = options.plugin.as_deref().unwrap_or(Path::new(""));
        let answer =
            probe::print(file, &options.device).unwrap_or_else(|error| json!({ "error": error }));
        return output::ended(output::write(format!("{answer}\n").as_bytes()));
    }
    let answer = match &options.plugin {
        None => list(&options, EVERYTHING).map(|text| (text, true)),
        Some(file) => conform(&options, file),
    };
    match answer {
        Ok((text, good)) => match output::write(text.as_bytes()) {
            Ok(()) if good => ExitCode::SUCCESS,
            written => {
                let _ = output::ended(written);
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("vip_conform: {error}");
            if options.json {
                let document = json!({ "error": error });
                let _ = output::write(format!("{document:#}\n").as_bytes());
            }
            ExitCode::from(2)
        }
    }
}

/// What is printed, and whether all is well.
fn conform(options: &Options, file: &Path) -> Result<(String, bool), String> {
    installed(options)?.use_it();
    let own = fs::canonicalize(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let name = file.file_name().unwrap_or_default();
    fits(&own, &name.to_string_lossy()).map_err(|why| format!("{}: {why}", file.display()))?;
    let kept = Kept::new("vip_conform").map_err(|error| format!("a folder: {error}"))?;
    // In a folder of its own, so that nothing else that lies beside it is loaded.
    let plugins = kept.folder().join("plugins");
    let link = plugins.join(name);
    fs::create_dir(&plugins)
        .and_then(|()| symlink(&own, &link))
        .map_err(|error| format!("{}: {error}", link.display()))?;
    let patience = Duration::from_secs(options.patience);
    let answer = probe::ask(&link, &options.device, patience)?;
    let provider = provider(&answer, options.pins);
    let runs = plan::runs(&[provider], &[Class::Own]);
    let able = able(options, &runs)?;
    eprintln!(
        "{} can do: {}; {} runs",
        provider.device,
        provider.abilities,
        able.len()
    );
    if options.list {
        return Ok((listed(&able), true));
    }
    let say = |line: &str| {
        if options.verbose || line.starts_with("run ") {
            eprintln!("{line}");
        }
    };
    let ways = Ways {
        jobs: options.jobs,
        folder: kept.folder(),
        plugins: plugins.as_os_str(),
        idle: patience,
        layers: "",
    };
    let outcomes = run::all(&able, &ways, &say);
    // Those are tests of the library, of this project's checkout.
    let elsewhere = RUST_TESTS
        .iter()
        .map(|_| Ok(Some("is shown by a test of the library".to_owned())));
    let results = results::judge(
        &[provider],
        &runs,
        &outcomes,
        &elsewhere.collect::<Vec<_>>(),
    );
    let columns = match options.filter.is_empty() {
        true => report::columns(&results, &[provider], &runs, &outcomes),
        false => Vec::new(),
    };
    let good = outcomes.iter().all(|outcome| outcome.failure.is_none());
    let text = match options.json {
        true => format!("{:#}\n", document(&answer, &columns, &results, &outcomes)),
        false => text(&columns, &results, &outcomes, options.verbose),
    };
    Ok((text, good))
}

/// A plug-in that can do everything, for a list of all runs.
const EVERYTHING: &Provider = &Provider {
    name: "NAME",
    device: "NAME:",
    source: None,
    abilities: ALL,
    ways: ONE_WAY,
    on_interface: false,
};

fn list(options: &Options, provider: &'static Provider) -> Result<String, String> {
    let runs = plan::runs(&[provider], &[Class::Own]);
    Ok(listed(&able(options, &runs)?))
}

/// The runs that were asked for and that the provider can do.
///
/// # Errors
/// There are none.
fn able(options: &Options, runs: &[Planned]) -> Result<Vec<Planned>, String> {
    let wanted = |run: &&Planned| {
        let name = run.to_string();
        options.filter.is_empty() || options.filter.iter().any(|part| name.contains(part))
    };
    let wanted: Vec<&Planned> = runs.iter().filter(wanted).collect();
    if wanted.is_empty() {
        let filter = options.filter.join(",");
        return Err(format!(
            "no run matches --filter {filter}; --list without --filter prints the names"
        ));
    }
    let able = wanted.iter().filter(|run| run.lacks().is_empty());
    let able: Vec<Planned> = able.map(|run| **run).collect();
    match (&*able, wanted.first()) {
        ([], Some(first)) => Err(format!(
            "the plug-in cannot do what these runs need; {first} needs {}",
            first.lacks()
        )),
        _ => Ok(able),
    }
}

/// Whether the library looks for a plug-in in a file of this kind and name; else why not.
fn fits(file: &Path, name: &str) -> Result<(), &'static str> {
    if file.is_dir() {
        return Err("it is a folder; --plugin names the file of a plug-in in it");
    }
    if !file.is_file() {
        return Err("it is no regular file");
    }
    match name
        .strip_prefix("libvipl_")
        .and_then(|name| name.strip_suffix(".so"))
    {
        Some(name) if name.starts_with("layer_") => {
            Err("it is a layer, which has no device to test")
        }
        Some(_) => Ok(()),
        None => Err("it is no plug-in: the file of one is named libvipl_NAME.so"),
    }
}

/// The installation that this program belongs to.
fn installed(options: &Options) -> Result<Installed, String> {
    let library = Library::open().map_err(|error| error.to_string())?;
    let version = library.describe("version").unwrap_or_default();
    let version: Value = serde_json::from_str(&version).unwrap_or_default();
    let path = version["path"].as_str().map(PathBuf::from);
    let path = path.unwrap_or_else(|| library.path().to_owned());
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let beside = own
        .parent()
        .unwrap_or(Path::new("/"))
        .join("../libexec/vipl");
    let programs = options
        .programs
        .clone()
        .unwrap_or_else(|| beside.join("conform"));
    if !programs.is_dir() {
        return Err(format!(
            "no conformance programs in {}; --programs names their folder",
            programs.display()
        ));
    }
    let library = path.parent().unwrap_or(Path::new("/")).to_owned();
    let agents = [beside.join("vipkad"), library.join("vipkad")];
    let agent = agents.into_iter().find(|agent| agent.is_file());
    Ok(Installed {
        agent: agent.ok_or("vipkad is not installed beside this program or the library")?,
        library,
        programs,
    })
}

/// A provider like those of the table, for as long as this process lives.
fn provider(answer: &Value, pins: bool) -> &'static Provider {
    let text = |name: &str| -> &'static str {
        answer[name].as_str().unwrap_or_default().to_owned().leak()
    };
    let bears = if pins { NONE } else { UNMAPPING };
    Box::leak(Box::new(Provider {
        name: text("plugin"),
        device: text("device"),
        source: None,
        abilities: probe::abilities(answer).and(bears),
        ways: ONE_WAY,
        on_interface: false,
    }))
}

/// The runs with what each has to show, and then what that is.
fn listed(runs: &[Planned]) -> String {
    let (mut text, mut named) = (String::new(), BTreeSet::new());
    for run in runs {
        let shown = run
            .shows()
            .into_iter()
            .filter(|(_, lacks)| lacks.is_empty());
        let ids: Vec<String> = shown.map(|(id, _)| id).collect();
        let _ = writeln!(text, "{run}: {}", ids.join(" "));
        named.extend(ids);
    }
    text += "\n";
    let all = assertions::all();
    for assertion in all.iter().filter(|one| named.contains(one.id)) {
        let _ = writeln!(text, "{}: {}", assertion.id, assertion.text);
    }
    text
}

/// The page, and what has failed.
fn text(columns: &[Column], results: &Results, outcomes: &[Outcome], verbose: bool) -> String {
    let mut text = match columns {
        [] => String::new(),
        columns => page::render(columns),
    };
    let failed = failures(outcomes);
    if !columns.is_empty() {
        let texts: BTreeMap<&str, &str> =
            assertions::all().iter().map(|a| (a.id, a.text)).collect();
        let of = |(_, id, verdict): &(&str, String, Verdict)| match verdict {
            Verdict::Failed(runs) => Some((id.clone(), runs.join(", "))),
            _ => None,
        };
        for (number, (id, runs)) in results.all.iter().filter_map(of).enumerate() {
            if number == 0 {
                text += "\nAssertions failed:\n\n";
            }
            let what = texts
                .get(id.as_str())
                .copied()
                .unwrap_or("a row of the error table, specification §6.4");
            let _ = writeln!(text, "- {id}: {what}\n  - not shown by {runs}");
        }
    }
    for (number, (run, failure)) in failed.iter().enumerate() {
        if number == 0 {
            text += "\nRuns failed:\n\n";
        }
        let failure = if verbose {
            (*failure).to_owned()
        } else {
            said(failure)
        };
        let _ = writeln!(text, "- {run}\n\n{}\n", indented(&failure));
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.unstable.is_some()) {
        let _ = writeln!(text, "- {} passed at its second attempt only", outcome.run);
    }
    let _ = writeln!(text, "\n{} runs, {} failed", outcomes.len(), failed.len());
    text
}

/// Names of the runs that failed, and all that is known.
fn failures(outcomes: &[Outcome]) -> Vec<(String, &str)> {
    let all = outcomes.iter().filter_map(|outcome| {
        let failure = outcome.failure.as_deref()?;
        Some((outcome.run.to_string(), failure))
    });
    all.collect()
}

/// The complaint, and what the program and the library said last.
fn said(failure: &str) -> String {
    let mut lines = failure.lines();
    let first = lines.next().unwrap_or_default();
    let is_said = |line: &&str| {
        !line.starts_with("shown:") && !line.starts_with("row: ") && !line.starts_with("-- ")
    };
    let rest: Vec<&str> = lines
        .filter(is_said)
        .filter(|line| !line.is_empty())
        .collect();
    let last = &rest[rest.len().saturating_sub(LAST)..];
    [&[first], last].concat().join("\n")
}

/// Lines of a failure that are printed.
const LAST: usize = 4;

fn indented(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| format!("      {line}")).collect();
    lines.join("\n")
}

fn document(answer: &Value, columns: &[Column], results: &Results, outcomes: &[Outcome]) -> Value {
    let pairs = |list: &Vec<(String, String)>| -> Value {
        Value::Object(
            list.iter()
                .map(|(name, cell)| (name.clone(), json!(cell)))
                .collect(),
        )
    };
    let verdicts = results.all.iter().map(|(_, id, verdict)| {
        let (word, why) = match verdict {
            Verdict::Passed => ("passed", None),
            Verdict::Failed(runs) => ("failed", Some(runs.join(", "))),
            Verdict::Skipped(why) => ("skipped", Some(why.clone())),
        };
        (id.clone(), json!({"verdict": word, "why": why}))
    });
    let runs = outcomes.iter().map(|outcome| {
        json!({"run": outcome.run.to_string(), "seconds": outcome.time.as_secs_f64(), "failure": outcome.failure,
            "passed_at_second_attempt": outcome.unstable.is_some()})
    });
    let column = columns.first();
    json!({
        "plugin": answer,
        "groups": column.map(|column| pairs(&column.groups)),
        "error_table": column.map(|column| pairs(&column.rows)),
        "assertions": column.map(|_| Value::Object(verdicts.collect())),
        "runs": runs.collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_a_plugin_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let why = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, "").expect("a file");
            fits(&file, name).err().unwrap_or_default()
        };
        assert_eq!(why("libvipl_x.so"), "");
        assert!(why("libvipl_layer_x.so").starts_with("it is a layer"));
        assert!(why("x.so").starts_with("it is no plug-in"));
        assert!(
            fits(folder.path(), "libvipl_x.so").is_err_and(|why| why.starts_with("it is a folder"))
        );
        assert!(fits(Path::new("/dev/null"), "libvipl_x.so").is_err());
    }
}

//! `cargo xtask conformance`: runs the suite on the plug-ins of this project.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;

use vipl_ctest::{Build, find_tool};

use crate::class::Class;
use crate::keeper::{self, Kept};
use crate::plan::{self, RUST_TESTS, RustTest};
use crate::provider::{self, PROVIDERS, Provider};
use crate::{assertions, check, page, report, results, run, verdict};

/// Runs the conformance suite.
#[derive(Parser)]
#[command(name = "cargo xtask conformance", about)]
struct Options {
    /// Only these plug-ins
    #[arg(long, value_name = "P", value_delimiter = ',')]
    provider: Vec<String>,
    /// Of how many bits the two sides of the programs are; assertions are judged with 64 only
    #[arg(
        long,
        value_name = "CLASS",
        value_delimiter = ',',
        default_value = "64"
    )]
    class: Vec<Class>,
    /// How many programs run at the same time
    #[arg(long, value_name = "N", default_value_t = 6)]
    jobs: usize,
    /// Only runs whose name contains one of these; assertions are not judged then
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    filter: Vec<String>,
    /// With these layers, whose files go to target/PROFILE/ctest/layers/RUN; assertions are not judged then
    #[arg(
        long,
        value_name = "LIST",
        default_value = "",
        hide_default_value = true
    )]
    layers: String,
    /// Begin with another run every day, for a choice of runs that may be cut off
    #[arg(long)]
    rotate: bool,
    /// Print the names of the runs and what each has to show
    #[arg(long)]
    list: bool,
    /// Print what each run has reported
    #[arg(long)]
    verbose: bool,
    /// Compile the programs of the plan for vip_conform into this folder, with the library in the folder of this program
    #[arg(long, value_name = "DIR")]
    programs: Option<std::path::PathBuf>,
    /// Only compile the programs, also those of devices that this machine does not have
    #[arg(long)]
    compile: bool,
    /// Only check that assertions, plan and programs name the same things
    #[arg(long)]
    ids: bool,
    /// Compare the results with docs/CONFORMANCE.md, for the plug-ins that were run
    #[arg(long, conflicts_with_all = ["write", "filter", "layers"])]
    check: bool,
    /// Write the results into docs/CONFORMANCE.md, for the plug-ins that were run
    #[arg(long, conflicts_with_all = ["filter", "layers"])]
    write: bool,
}

/// Runs the suite as its command line says.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = keeper::keep() {
        return code;
    }
    match suite(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

/// True if all is well.
fn suite(options: &Options) -> Result<bool, String> {
    let complaints = check::complaints().map_err(|error| error.to_string())?;
    for complaint in &complaints {
        println!("{complaint}");
    }
    if options.ids {
        let number = assertions::all().len();
        println!("{number} assertions, {} complaints", complaints.len());
        return Ok(complaints.is_empty());
    }
    if let Some(folder) = &options.programs {
        run::install(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        return Ok(complaints.is_empty());
    }
    let mut providers = chosen(&options.provider)?;
    let is_here = || Build::I386.is_here() && find_tool("i686-linux-gnu-gcc").is_some();
    if options.class != [Class::Own] && !is_here() {
        println!("SKIP no library or C compiler for i386: cargo xtask cross builds the library");
        return Ok(true);
    }
    if !options.list && !options.compile {
        providers.retain(is_present);
    }
    let runs = plan::runs(&providers, &options.class);
    let filters = &options.filter;
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|one| name.contains(one));
    let mut able: Vec<_> = runs
        .iter()
        .copied()
        .filter(|r| r.lacks().is_empty() && wanted(&r.to_string()))
        .collect();
    if options.rotate && !able.is_empty() {
        let day = SystemTime::now().duration_since(UNIX_EPOCH);
        let day = day.map_or(0, |time| time.as_secs() / 86_400);
        let first = day.wrapping_mul(37) % able.len() as u64;
        able.rotate_left(first as usize);
    }
    if options.list {
        let texts: BTreeMap<&str, &str> =
            assertions::all().iter().map(|a| (a.id, a.text)).collect();
        let text = |id: &str| texts.get(id).copied().unwrap_or_default();
        list(&runs, &wanted, &text);
        return Ok(complaints.is_empty());
    }
    let plugins = provider::plugin_path();
    run::compile(&able, options.jobs);
    if options.compile {
        return Ok(complaints.is_empty());
    }
    let kept = Kept::new("conformance").map_err(|error| format!("a folder: {error}"))?;
    let ways = run::Ways {
        jobs: options.jobs,
        folder: kept.folder(),
        plugins: &plugins,
        idle: run::IDLE,
        layers: &options.layers,
    };
    let outcomes = run::all(&able, &ways, &|line| println!("{line}"));
    drop(kept);
    if options.verbose {
        for outcome in &outcomes {
            let shown: Vec<&str> = outcome.shown.iter().map(String::as_str).collect();
            println!("shown {}: {}", outcome.run, shown.join(" "));
        }
    }
    if !filters.is_empty() || !options.layers.is_empty() || options.class != [Class::Own] {
        return Ok(filtered(&outcomes));
    }
    let asked = |test: &RustTest| providers.iter().any(|p| p.name == test.provider);
    let rust: Vec<_> = RUST_TESTS
        .iter()
        .map(|test| match asked(test) {
            true => run::rust_test(test),
            false => Ok(None),
        })
        .collect();
    let rust_failures: Vec<(String, String)> = RUST_TESTS
        .iter()
        .zip(&rust)
        .filter_map(|(test, done)| {
            Some((format!("{}::{}", test.file, test.name), done.clone().err()?))
        })
        .collect();
    let results = results::judge(&providers, &runs, &outcomes, &rust);
    let columns = report::columns(&results, &providers, &runs, &outcomes);
    report::print(&results, &outcomes, &rust_failures, &page::render(&columns));
    let mut good = complaints.is_empty()
        && rust_failures.is_empty()
        && outcomes.iter().all(|outcome| outcome.failure.is_none())
        && !results
            .all
            .iter()
            .any(|(_, _, v)| matches!(v, verdict::Verdict::Failed(_)));
    if options.write {
        page::write(columns.clone())?;
    }
    if options.check {
        let difference = page::differences(&columns)?;
        for line in &difference {
            println!("docs/CONFORMANCE.md: {line}");
        }
        if !difference.is_empty() {
            println!(
                "docs/CONFORMANCE.md is not what the runs gave: cargo xtask conformance --write"
            );
        }
        good &= difference.is_empty();
    }
    Ok(good)
}

/// The plug-ins of these names; all without names.
fn chosen(names: &[String]) -> Result<Vec<&'static Provider>, String> {
    for name in names {
        if PROVIDERS.iter().all(|provider| provider.name != name) {
            let known: Vec<&str> = PROVIDERS.iter().map(|provider| provider.name).collect();
            return Err(format!(
                "there is no provider {name}; there are {}",
                known.join(", ")
            ));
        }
    }
    let wanted = |p: &&Provider| names.is_empty() || names.iter().any(|name| name == p.name);
    Ok(PROVIDERS.iter().filter(wanted).collect())
}

/// This machine and this user can run it; otherwise says why not.
fn is_present(provider: &&'static Provider) -> bool {
    let absent = provider.absent();
    if let Some(why) = &absent {
        println!("test {} ... ignored, {why}", provider.name);
    }
    absent.is_none()
}

/// Prints the runs.
fn list(
    runs: &[plan::Planned],
    wanted: &impl Fn(&str) -> bool,
    text: &impl Fn(&str) -> &'static str,
) {
    for run in runs.iter().filter(|run| wanted(&run.to_string())) {
        let lacks = run.lacks();
        if !lacks.is_empty() {
            println!("{run}: left out, the plug-in has no {lacks}");
            continue;
        }
        println!("{run}");
        for (id, _) in run
            .shows()
            .into_iter()
            .filter(|(_, lacks)| lacks.is_empty())
        {
            println!("  {id}: {}", text(&id));
        }
    }
}

/// Prints what a choice of runs came to; true if all is well.
fn filtered(outcomes: &[run::Outcome]) -> bool {
    for outcome in outcomes {
        if let Some(first) = &outcome.unstable {
            println!("\nunstable: {}\n{first}", outcome.run);
        }
        if let Some(failure) = &outcome.failure {
            println!("\nFAILED {}\n{failure}", outcome.run);
        }
    }
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.failure.is_some())
        .count();
    let unstable = outcomes
        .iter()
        .filter(|outcome| outcome.unstable.is_some())
        .count();
    for outcome in outcomes.iter().filter(|o| o.failure.is_some()) {
        println!("test {} ... FAILED", outcome.run);
    }
    let (runs, passed) = (outcomes.len(), outcomes.len() - failed);
    println!("\n{runs} runs, {failed} failed, {unstable} unstable");
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {word}. {passed} passed; {failed} failed; 0 ignored");
    failed == 0 && !outcomes.is_empty()
}

//! Runs what is planned: several runs at a time, each with a Kernel Agent of its own, and what failed
//! once more, alone, after all others.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vipl_ctest::{Limits, Run, Started, library_dir, profile, work_dir};

use crate::assertions::ids_in;
use crate::class::Class;
use crate::ground::Ground;
use crate::plan::{ENTRIES, Form, Mode, Planned, RustTest};
use crate::program;

/// A run that takes longer is ended; it takes seconds, but the machine may be busy with other things.
pub(crate) const WATCHDOG_SECONDS: u64 = 900;
/// So is one that uses more processor time than any by far.
const PROCESSOR_TIME: Duration = Duration::from_secs(300);
/// And one of which no process does anything for longer than the programs wait for what is certain to happen, 80 seconds.
pub(crate) const IDLE: Duration = Duration::from_secs(120);
/// After this time it is said that a run has not ended yet; earlier, if it may do nothing for less.
const WORD: Duration = Duration::from_secs(30);

/// What came of a run.
pub(crate) struct Outcome {
    /// The run.
    pub(crate) run: Planned,
    /// The identifiers that it reported.
    pub(crate) shown: BTreeSet<String>,
    /// Lines `row: ...` of the error table.
    pub(crate) rows: Vec<String>,
    /// What went wrong, with the output; it also went wrong a second time.
    pub(crate) failure: Option<String>,
    /// What went wrong the first time only.
    pub(crate) unstable: Option<String>,
    /// How long it took.
    pub(crate) time: Duration,
}

/// Runs one; the second value is the failure with all that is known about it.
fn attempt(
    run: &Planned,
    ways: &Ways<'_>,
    say: &(dyn Fn(&str) + Sync),
) -> (Outcome, Option<String>) {
    let begun = Instant::now();
    let mut outcome = Outcome {
        run: *run,
        shown: BTreeSet::new(),
        rows: Vec::new(),
        failure: None,
        unstable: None,
        time: Duration::ZERO,
    };
    let ground = match Ground::new(run, ways.folder) {
        Ok(ground) => ground,
        Err(error) => return (outcome, Some(error)),
    };
    let mut started = ground.place(run, command(run, ways, &ground)).start();
    // Whether it does anything is looked at from then on.
    let word = WORD.min(ways.idle);
    if outlasts(&mut started, word) {
        let (seconds, idle) = (word.as_secs(), ways.idle.as_secs());
        say(&format!(
            "run {run} ... has not ended after {seconds} s; it is ended when it has done nothing for {idle} s, or after {WATCHDOG_SECONDS} s"
        ));
    }
    let finished = started.finish();
    outcome.time = begun.elapsed();
    for line in finished.stdout.lines() {
        if let Some(list) = line.strip_prefix("shown:") {
            outcome
                .shown
                .extend(ids_in(list).into_iter().map(str::to_owned));
        } else if let Some(row) = line.strip_prefix("row: ") {
            outcome.rows.push(row.to_owned());
        }
    }
    let missing: Vec<String> = run
        .shows()
        .into_iter()
        .filter(|(id, lacks)| lacks.is_empty() && !outcome.shown.contains(id))
        .map(|(id, _)| id)
        .collect();
    let complaint = finished
        .complaint()
        .or_else(|| (!missing.is_empty()).then(|| format!("did not report {}", missing.join(" "))));
    let failure = complaint.map(|complaint| finished.report(&complaint));
    (outcome, failure)
}

/// Whether it has not ended after this time; waits for either.
pub(crate) fn outlasts(started: &mut Started, time: Duration) -> bool {
    let begun = Instant::now();
    while started.is_running() && begun.elapsed() < time {
        std::thread::sleep(Duration::from_millis(5));
    }
    started.is_running()
}

/// The command of a run.
fn command(run: &Planned, ways: &Ways<'_>, ground: &Ground) -> Run {
    let limits = Limits {
        processor_time: PROCESSOR_TIME,
        idle: ways.idle,
    };
    let mut command = program::command(run)
        .seconds(WATCHDOG_SECONDS)
        .limits(limits)
        .arg("-d")
        .arg(run.provider.device);
    if run.class == Class::Own {
        command = command.env("VIPL_PLUGIN_PATH", ways.plugins);
    }
    command = command
        .env("VIPL_HOSTS", ground.table())
        .env("CTEST_OTHER_DEVICE", run.provider.other_device())
        .env("CTEST_LACKS", run.provider.lacks());
    for (name, value) in run.provider.ways[run.way].env.iter().chain(run.entry.env) {
        command = command.env(name, *value);
    }
    if run.form == Some(Form::One) {
        command = command.arg("-1");
    }
    if !ways.layers.is_empty() {
        command = layered(command, run, ways.layers);
    }
    if let Some(level) = run.level {
        command = command.arg("-l").arg(level.name());
    }
    for text in run.entry.allow {
        command = command.allow(text);
    }
    for argument in run.entry.arguments {
        command = command.arg(argument);
    }
    command
}

/// Compiles the programs of these runs, `jobs` at a time.
pub(crate) fn compile(runs: &[Planned], jobs: usize) {
    library_dir();
    let mut needed: Vec<&Planned> = runs.iter().collect();
    let key = |run: &&Planned| (run.entry.program, run.class, run.mode == Mode::Default);
    needed.sort_by_key(key);
    needed.dedup_by_key(|run| key(run));
    in_parallel(&needed, jobs, |run| {
        program::command(run);
    });
}

/// Compiles the programs of the plan, for any plug-in, into this folder, linked with the library beside this program.
pub(crate) fn install(folder: &Path) -> std::io::Result<()> {
    let own = std::env::current_exe()?;
    let build = own.parent().unwrap_or(folder);
    let mut names: Vec<&str> = ENTRIES.iter().map(|entry| entry.program).collect();
    names.sort_unstable();
    names.dedup();
    in_parallel(&names, 2, |name| {
        vipl_ctest::install_program(name, build, &folder.join(name));
    });
    Ok(())
}

/// Calls `work` for each item, `jobs` at a time, in order of the list.
fn in_parallel<T: Sync>(items: &[T], jobs: usize, work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

/// How runs are made.
pub(crate) struct Ways<'a> {
    /// How many at a time.
    pub(crate) jobs: usize,
    /// Where each run has a folder of its own.
    pub(crate) folder: &'a Path,
    /// The path to plug-ins.
    pub(crate) plugins: &'a OsStr,
    /// How long one may do nothing.
    pub(crate) idle: Duration,
    /// The layers that see the calls; none if it is empty.
    pub(crate) layers: &'a str,
}

/// A run under layers: their files are in a folder of its own, `fault` has a rule that never applies, and what `validate`
/// finds is no failure.
fn layered(command: Run, run: &Planned, layers: &str) -> Run {
    let name = run.to_string().replace(['/', ' '], "_");
    let dir = work_dir().join("layers").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder for the files of the layers");
    let settings = [
        (
            "trace",
            "VIPL_TRACE_FILE",
            dir.join("trace").into_os_string(),
        ),
        (
            "record",
            "VIPL_RECORD_FILE",
            dir.join("run").into_os_string(),
        ),
        ("record", "VIPL_RECORD_BYTES", "true".into()),
        ("fault", "VIPL_FAULT", "Vip*:VIP_TIMEOUT:chance=0".into()),
    ];
    // A setting of a layer that is not there is a warning.
    let here = |layer: &str| layers.split(',').any(|one| one == layer);
    settings
        .into_iter()
        .filter(|(layer, ..)| here(layer))
        .fold(command, |command, (_, name, value)| {
            command.env(name, value)
        })
        .env("VIPL_LAYERS", layers)
        .allow("VAL-")
}

/// Runs all, then those that failed once more.
///
/// `say` gets a line about each.
pub(crate) fn all(runs: &[Planned], ways: &Ways<'_>, say: &(dyn Fn(&str) + Sync)) -> Vec<Outcome> {
    let done: Mutex<Vec<(Outcome, Option<String>)>> = Mutex::new(Vec::new());
    in_parallel(runs, ways.jobs, |run| {
        let (outcome, failure) = attempt(run, ways, say);
        let verdict = match &failure {
            Some(_) => "FAILED, once more later",
            None => "ok",
        };
        let seconds = outcome.time.as_secs_f64();
        say(&format!("run {run} ... {verdict} ({seconds:.1} s)"));
        if let Some(failure) = &failure {
            say(failure);
        }
        done.lock()
            .expect("no thread panics")
            .push((outcome, failure));
    });
    let done = done.into_inner().expect("no thread panics");
    done.into_iter()
        .map(|(outcome, first)| match first {
            None => outcome,
            Some(first) => again(&outcome.run, first, ways, say),
        })
        .collect()
}

/// The second attempt.
fn again(run: &Planned, first: String, ways: &Ways<'_>, say: &(dyn Fn(&str) + Sync)) -> Outcome {
    let (mut outcome, second) = attempt(run, ways, say);
    let verdict = if second.is_some() { "FAILED" } else { "ok" };
    say(&format!("run {run} ... {verdict} the second time"));
    match second {
        Some(second) => outcome.failure = Some(second),
        None => outcome.unstable = Some(first),
    }
    outcome
}

/// Runs a test of the crate `vipl-ctest`; gives the reason of a skip, or the failure.
pub(crate) fn rust_test(test: &RustTest) -> Result<Option<String>, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // With the features of the whole workspace, as it was built.
    cargo.args(["test", "--quiet", "--profile", profile(), "--workspace"]);
    cargo.args(["--test", test.file]);
    cargo.args(["--", "--exact", "--show-output", test.name]);
    let output = cargo.output().map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() || !text.contains("1 passed") {
        return Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(text
        .lines()
        .find_map(|line| line.strip_prefix("SKIP "))
        .map(str::to_owned))
}

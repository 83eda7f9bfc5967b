//! Makes recorded runs again (`vip_replay`): files of the layer `record`, one for each process, all in this one.
//!
//! ```text
//!   replay ─▶ calls ─▶ process ─▶ memory ─▶ file
//!          ├▶ order
//!          ├▶ runs   which files belong together
//!          └▶ peers  whose other sides are not there
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use vipl_client::Library;
use vipl_client::raw::abi::VIP_RETURN;
use vipl_sys::mutex::Mutex;

use crate::{Error, Result};

mod calls;
mod file;
#[cfg(fuzzing)]
pub mod fuzzing;
mod memory;
mod order;
mod peers;
mod process;
mod runs;

use calls::{Outcome, Stage};
use file::{Call, Recording, shown};
use memory::Memory;
use order::Order;
use process::Process;

/// Differences of which each has a line.
const SHOWN_MAX: usize = 50;
/// Most threads of all recorded processes.
const THREADS_MAX: usize = 1024;

/// What to replay.
pub struct Plan {
    /// Files of the layer `record`, those of all processes of a run.
    pub files: Vec<PathBuf>,
    /// The device for all NICs; else those of the recording.
    pub device: Option<String>,
    /// How long a call may wait for others while none of them ends, and how long it may take itself.
    pub patience: Duration,
    /// Most bytes of memory for each process, and of its file.
    pub memory: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Calls that were made.
    pub made: usize,
    /// Calls that were not made, by the reason.
    pub left: BTreeMap<String, usize>,
    /// Waits that found nothing then, and now what a later call took then.
    pub early: usize,
    /// What was made in another way than then, a line each.
    pub notes: Vec<String>,
    /// A device that opened then, and does not now.
    unopened: Option<String>,
    /// What is not as it was, a line each; and how many there are.
    pub differences: Vec<String>,
    /// How many there are.
    pub count: usize,
}

/// Makes the calls again. `VIPL_STRICT` is set as the files say, unless the environment has it.
///
/// # Errors
/// A file cannot be read or needs too much memory or too many threads, the files are of several runs or have one side
/// only of all connections, there is no library, or a device does not open.
pub fn run(plan: &Plan) -> Result<Report> {
    let mut recordings = Vec::new();
    for path in &plan.files {
        recordings.push(Recording::read(path, plan.memory)?);
    }
    runs::is_one(recordings.iter())?;
    let cut = recordings.iter().filter(|one| one.is_cut);
    let mut notes: Vec<String> = cut
        .map(|one| {
            format!(
                "{} is cut: its process was killed or called _exit, or the file took no more; what it called then is missing",
                one.name
            )
        })
        .collect();
    notes.extend(peers::are_here(&recordings)?);
    notes.extend(take_mode(&recordings));
    let library = Library::open()?;
    let mut processes = Vec::new();
    for recording in recordings {
        let memory = Memory::of(&recording, plan.memory)?;
        processes.push(Process::new(recording, memory));
    }
    let threads = threads(processes.iter().map(|one| &one.recording))?;
    let calls = || processes.iter().flat_map(|one| &one.recording.calls);
    let ends: HashMap<&str, Vec<u64>> = processes.iter().fold(HashMap::new(), |mut all, one| {
        let own = one.recording.calls.iter().map(|call| call.ended);
        all.entry(one.recording.boot.as_str())
            .or_insert_with(Vec::new)
            .extend(own);
        all
    });
    let orders: HashMap<&str, Order> = ends
        .into_iter()
        .map(|(boot, ends)| (boot, Order::new(ends.into_iter(), plan.patience)))
        .collect();
    let sides = sides(&processes);
    let side = |key| {
        sides
            .get(&key)
            .map(|(process, nic)| (&processes[*process], *nic))
    };
    let hosts = hosts(calls());
    let is_recorded = |host: &[u8]| hosts.is_empty() || hosts.contains(host);
    let with_bytes = calls().any(|call| call.text("data").is_some());
    let stage = Stage {
        functions: library.functions(),
        device: plan.device.as_deref(),
        patience: plan.patience,
        reads: processes.iter().any(|one| one.recording.reads()),
        with_bytes,
        sides: &side,
        is_recorded: &is_recorded,
    };
    let run = Run {
        report: Mutex::new(Report {
            notes,
            ..Report::default()
        }),
        made: AtomicUsize::new(0),
        stopped: AtomicBool::new(false),
        is_unfit: AtomicBool::new(false),
    };
    // No call is made before all threads exist, and none if one cannot be made.
    let may_begin = Mutex::new(false);
    std::thread::scope(|scope| {
        let mut all_exist = may_begin.lock();
        for (number, calls) in &threads {
            let process = &processes[*number];
            let order = &orders[process.recording.boot.as_str()];
            let (run, stage, may_begin) = (&run, &stage, &may_begin);
            let work = move || {
                let begins = *may_begin.lock();
                if begins {
                    run.thread(stage, process, order, calls);
                }
            };
            std::thread::Builder::new()
                .spawn_scoped(scope, work)
                .map_err(|error| {
                    let what = format!("cannot start {} threads", threads.len());
                    Error::io(what, error)
                })?;
        }
        *all_exist = true;
        Ok::<_, Error>(())
    })?;
    let mut report = std::mem::take(&mut *run.report.lock());
    report.made = run.made.into_inner();
    match report.unopened.take() {
        Some(what) => Err(Error::Usage(what)),
        None => Ok(report),
    }
}

/// Takes the mode of then, of which a process has one: that of all files, or the compatible one with a note.
fn take_mode(recordings: &[Recording]) -> Option<String> {
    let strict = recordings.iter().find(|one| one.strict)?;
    if std::env::var_os("VIPL_STRICT").is_some() {
        return None;
    }
    let mut others = recordings.iter().filter(|one| !one.calls.is_empty());
    if let Some(other) = others.find(|one| !one.strict) {
        return Some(format!(
            "{} is of a process in the strict mode, {} is not: all calls are made in the compatible one; VIPL_STRICT=true takes the other",
            strict.name, other.name
        ));
    }
    if !vipl_sys::thread::is_alone() {
        let name = &strict.name;
        return Some(format!(
            "{name} is of the strict mode: set VIPL_STRICT=true"
        ));
    }
    // SAFETY: there is no other thread that could read the environment now.
    unsafe { std::env::set_var("VIPL_STRICT", "true") };
    None
}

/// The threads of all processes: the number of the process, and the calls in the order in which they began.
///
/// # Errors
/// There are too many.
fn threads<'a>(
    recordings: impl Iterator<Item = &'a Recording>,
) -> Result<Vec<(usize, Vec<&'a Call>)>> {
    let mut all = Vec::new();
    for (number, recording) in recordings.enumerate() {
        let mut own: BTreeMap<u64, Vec<&Call>> = BTreeMap::new();
        for call in &recording.calls {
            own.entry(call.thread).or_default().push(call);
        }
        if all.len() + own.len() > THREADS_MAX {
            return Err(Error::Usage(format!(
                "{}: more than {THREADS_MAX} threads are needed up to this file",
                recording.name
            )));
        }
        for mut calls in own.into_values() {
            calls.sort_by_key(|call| call.began);
            all.push((number, calls));
        }
    }
    Ok(all)
}

/// Which process and NIC is at each side of each connection.
fn sides(processes: &[Process]) -> HashMap<(u64, u64), (usize, u64)> {
    let mut sides = HashMap::new();
    for (number, process) in processes.iter().enumerate() {
        let mut nics: HashMap<u64, u64> = HashMap::new();
        for call in &process.recording.calls {
            let vi = call.number("ViHandle");
            if call.name == "VipCreateVi" {
                nics.insert(vi, call.number("NicHandle"));
            }
            if let (Some(connection), Some(nic)) = (call.connection(), nics.get(&vi)) {
                sides.insert(connection, (number, *nic));
            }
        }
    }
    sides
}

/// The hosts of the recorded processes: their own sides of connections have them.
fn hosts<'a>(calls: impl Iterator<Item = &'a Call>) -> HashSet<Vec<u8>> {
    calls
        .filter(|call| call.result != "VIP_INVALID_PARAMETER")
        .filter_map(|call| Some(call.address("LocalAddr")?.0))
        .collect()
}

/// A run under way.
struct Run {
    report: Mutex<Report>,
    made: AtomicUsize,
    /// A call did not end in time, so those behind it are not made.
    stopped: AtomicBool,
    /// The device does not have what the run needs, so all that ends now is different.
    is_unfit: AtomicBool,
}

impl Run {
    /// The calls of one thread.
    fn thread(&self, stage: &Stage<'_>, process: &Process, order: &Order, calls: &[&Call]) {
        for call in calls {
            if !order.wait(call.began) && !self.stopped.swap(true, Ordering::Relaxed) {
                self.differs(
                    process,
                    call,
                    "calls before it have not ended; the rest is not made",
                );
            }
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            let outcome = stage.make(process, call);
            if self.is_unfit.load(Ordering::Relaxed) {
                return;
            }
            if let Outcome::Left(reason) = outcome {
                let mut report = self.report.lock();
                *report.left.entry(reason.to_owned()).or_insert(0) += 1;
            } else {
                self.made.fetch_add(1, Ordering::Relaxed);
            }
            match outcome {
                Outcome::Left(_) | Outcome::Done => {}
                Outcome::Changed(code, note) => {
                    let mut report = self.report.lock();
                    if !report.notes.contains(&note) {
                        report.notes.push(note);
                    }
                    drop(report);
                    self.compare(process, call, code, None);
                }
                Outcome::Unopened(what) => {
                    self.stopped.store(true, Ordering::Relaxed);
                    order.stop();
                    let mut report = self.report.lock();
                    let (file, line) = (&process.recording.name, call.line);
                    let text = format!("{file}:{line}: {what}");
                    report.unopened.get_or_insert(text);
                    return;
                }
                Outcome::Unfit(what) => {
                    // All that follows would differ, for this one reason.
                    self.stopped.store(true, Ordering::Relaxed);
                    order.stop();
                    if !self.is_unfit.swap(true, Ordering::Relaxed) {
                        let why = format!(
                            "this device does not have {what}: choose another one; the rest is not made"
                        );
                        self.differs(process, call, &why);
                    }
                    return;
                }
                Outcome::Early => self.report.lock().early += 1,
                Outcome::Made(code, other) => self.compare(process, call, code, other),
            }
            order.ended(call.ended);
        }
    }

    /// Compares a result; `other`: what else is not as it was.
    fn compare(&self, process: &Process, call: &Call, code: i32, other: Option<String>) {
        let code =
            VIP_RETURN::of(code).map_or_else(|| code.to_string(), |code| format!("{code:?}"));
        if code != call.result {
            let then = shown(&call.result);
            self.differs(process, call, &format!("was {then} and is {code}"));
        } else if let Some(other) = other {
            self.differs(process, call, &other);
        }
    }

    fn differs(&self, process: &Process, call: &Call, what: &str) {
        let mut report = self.report.lock();
        report.count += 1;
        if report.differences.len() < SHOWN_MAX {
            let (file, line, name) = (&process.recording.name, call.line, shown(&call.name));
            report
                .differences
                .push(format!("{file}:{line}: {name}: {what}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_bounded() {
        let recording = |count: usize| {
            let lines = (0..count).map(|thread| format!("{thread} 1 2 VipCloseNic VIP_SUCCESS\n"));
            let text: String = lines.collect();
            Recording::parse("r", &format!("vipl-record 1 1 b\n{text}")).expect("a recording")
        };
        let (all, one) = (recording(THREADS_MAX), recording(1));
        assert_eq!(
            threads([&all].into_iter()).expect("threads").len(),
            THREADS_MAX
        );
        let error = threads([&all, &one].into_iter()).expect_err("too many");
        let text = error.to_string();
        assert!(text.starts_with("r: more than 1024 threads"), "{text}");
    }
}

//! Whether the Kernel Agent answers, before anything else is asked of it.
//!
//! A call waits half a minute for an agent that is stopped, and so does each further one of a process that has not been
//! welcomed by it. A tool that looks for the reason asks once, on a thread, and looks meanwhile at what the agent's process does.

#![forbid(unsafe_code)]

use std::time::Duration;

use serde_json::Value;
use vipl_client::Library;
use vipl_sys::clock::{Instant, sleep};

use crate::sys::{self, State};
use crate::{host, report};

/// After this time it is said what is waited for.
const WORD: Duration = Duration::from_secs(1);
/// An agent whose process has been stopped for so long, from then on, is not waited for.
const STOPPED: Duration = Duration::from_secs(1);
/// A refusal that takes so long would take as long the next time. Those that have another reason than silence come at once.
const LONG: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);

/// What came of it.
pub enum Answer {
    /// The budgets of this user; none if the library says at once that there is no agent, or does not know budgets.
    Given(Option<Value>),
    /// No answer came, for this reason: each further call that needs the agent would wait as well.
    Silent(String),
}

/// Asks the agent for its budgets; it is started if there is none. After a second standard error says what this tool waits for.
#[must_use]
pub fn ask(library: &'static Library, tool: &str) -> Answer {
    let asked = Instant::now();
    let thread = std::thread::Builder::new().spawn(|| host::describe(library, "budgets"));
    let Ok(thread) = thread else {
        return Answer::Given(host::describe(library, "budgets"));
    };
    let mut agent = None;
    let mut stopped: Option<Instant> = None;
    while !thread.is_finished() {
        sleep(LOOK);
        if asked.elapsed() < WORD {
            continue;
        }
        let seen = Agent::of_this_process();
        if agent.is_none() {
            report::note(&format!("{tool}: waiting for {}", seen.shown()));
        }
        stopped = seen
            .is_stopped()
            .then(|| stopped.unwrap_or_else(Instant::now));
        if stopped.is_some_and(|since| since.elapsed() >= STOPPED) {
            return Answer::Silent(seen.silence(asked.elapsed()));
        }
        // The library closes the connection before it gives up.
        if agent.is_none() || seen.process.is_some() {
            agent = Some(seen);
        }
    }
    let answer = thread.join().unwrap_or_default();
    match (answer, agent) {
        (None, Some(agent)) if asked.elapsed() >= LONG => {
            Answer::Silent(agent.silence(asked.elapsed()))
        }
        (answer, _) => Answer::Given(answer),
    }
}

/// The agent that this process waits for, as far as the system shows it.
struct Agent {
    /// None: no connection to it is there, or its process is not of this process namespace.
    process: Option<u32>,
    state: State,
}

impl Agent {
    fn of_this_process() -> Agent {
        let process = sys::sequenced_peer();
        let state = process.map_or(State::Unknown, sys::state);
        Agent { process, state }
    }

    fn is_stopped(&self) -> bool {
        self.state == State::Stopped
    }

    /// Who it is.
    fn name(&self) -> String {
        let Some(process) = self.process else {
            return "the Kernel Agent".to_owned();
        };
        let program = std::fs::read_link(format!("/proc/{process}/exe"));
        match program {
            Ok(program) => format!("process {process} ({})", program.display()),
            Err(_) => format!("process {process}"),
        }
    }

    /// What is waited for.
    fn shown(&self) -> String {
        match (self.process, self.is_stopped()) {
            (None, _) => self.name(),
            (_, false) => format!("the Kernel Agent, {}", self.name()),
            (_, true) => format!("the Kernel Agent, {}, which is stopped", self.name()),
        }
    }

    /// That it has not answered for so long, and what to do about it.
    fn silence(&self, waited: Duration) -> String {
        let (name, seconds) = (self.name(), waited.as_secs());
        match self.process.filter(|_| self.is_stopped()) {
            Some(process) => format!(
                "{name} is stopped and has not replied for {seconds} s; `kill -CONT {process}` resumes it"
            ),
            None => format!("{name} has not replied for {seconds} s"),
        }
    }
}

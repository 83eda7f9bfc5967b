//! What one thread is about to write.

use vipl_plugin_sdk::abi::function_name;
use vipl_plugin_sdk::layer::Call;

use crate::flows::Last;
use crate::line::Text;
use crate::ticks::{Anchor, Speed};

/// Polls that find nothing for as long are a slice of their own; else the call that finds something has their number.
const POLLS_NS: u64 = 10_000;

/// Lines of one thread, and what it needs to make more.
pub(crate) struct Mine {
    pub(crate) text: Text,
    pub(crate) anchor: Anchor,
    pub(crate) last: Last,
    /// `{"pid":1,"tid":2,`
    pub(crate) head: String,
    /// Polls without a result that make one line.
    pub(crate) polls: Option<Polls>,
    /// The call that its thread is in, if that may wait.
    pub(crate) open: Option<Open>,
    /// When its lines were last written.
    pub(crate) written_ns: u64,
}

/// Calls that were repeated until they found something.
pub(crate) struct Polls {
    pub(crate) function: u32,
    pub(crate) object: u64,
    pub(crate) times: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A call that has begun.
pub(crate) struct Open {
    pub(crate) function: u32,
    pub(crate) object: u64,
    pub(crate) began: u64,
}

impl Mine {
    pub(crate) fn new(speed: Speed, pid: u32, tid: u32) -> Mine {
        Mine {
            text: Text::default(),
            anchor: Anchor::new(speed),
            last: Last::default(),
            head: format!("{{\"pid\":{pid},\"tid\":{tid},"),
            polls: None,
            open: None,
            written_ns: vipl_sys::clock::now_ns(),
        }
    }

    /// The beginning of a line, up to the duration.
    pub(crate) fn begin(&mut self, name: &str, began: u64, duration_ns: u64) {
        let at = self.anchor.at(began);
        self.text.put(&self.head);
        self.text.put("\"ph\":\"X\",\"ts\":");
        self.text.micros(at);
        self.text.put(",\"dur\":");
        self.text.micros(duration_ns);
        self.text.put(",\"name\":\"");
        self.text.put(name);
        self.text.put("\"");
    }

    /// The beginning of a line without a duration.
    pub(crate) fn instant(&mut self, name: &str, ticks: u64) {
        let at = self.anchor.at(ticks);
        self.text.put(&self.head);
        self.text.put("\"ph\":\"i\",\"s\":\"t\",\"ts\":");
        self.text.micros(at);
        self.text.put(",\"name\":");
        self.text.quoted(name.as_bytes());
    }

    /// A poll that found nothing: one more of the same, or the first of others.
    pub(crate) fn poll(&mut self, call: &Call<'_>, began: u64, ended: u64) {
        let (function, object) = (call.function(), call.argument(0));
        if let Some(polls) = &mut self.polls
            && (polls.function, polls.object) == (function, object)
        {
            polls.times += 1;
            polls.to = ended;
            return;
        }
        self.end_polls();
        self.polls = Some(Polls {
            function,
            object,
            times: 1,
            from: began,
            to: ended,
        });
    }

    /// Before the same call, which has found something: how many polls go into its line.
    pub(crate) fn fold_polls(&mut self, call: &Call<'_>) -> u64 {
        let fits = self.polls.as_ref().is_some_and(|polls| {
            (polls.function, polls.object) == (call.function(), call.argument(0))
                && self.anchor.ns(polls.to.wrapping_sub(polls.from)) < POLLS_NS
        });
        match fits {
            true => self.polls.take().map_or(0, |polls| polls.times),
            false => {
                self.end_polls();
                0
            }
        }
    }

    /// Writes that its thread is in a call, once, if that has lasted for so long.
    pub(crate) fn report_open(&mut self, least_ns: u64, now: u64) {
        let Some(open) = self
            .open
            .take_if(|open| self.anchor.ns(now.wrapping_sub(open.began)) >= least_ns)
        else {
            return;
        };
        let name = function_name(open.function).to_str().unwrap_or_default();
        self.instant(&format!("in {name}"), open.began);
        self.text.put(",\"args\":{\"handle\":");
        self.text.hex(open.object);
        self.text.put("}},\n");
    }

    /// Writes the line of polls.
    pub(crate) fn end_polls(&mut self) {
        let Some(polls) = self.polls.take() else {
            return;
        };
        let name = function_name(polls.function).to_str().unwrap_or_default();
        let duration = self.anchor.ns(polls.to.wrapping_sub(polls.from));
        self.begin(name, polls.from, duration);
        self.text.put(",\"args\":{\"handle\":");
        self.text.hex(polls.object);
        self.text.put(",\"times\":");
        self.text.decimal(polls.times);
        self.text.put(",\"result\":\"VIP_NOT_DONE\"}},\n");
    }
}

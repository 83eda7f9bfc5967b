//! The layer `trace`: each call with its arguments, result and duration, to the log or to a file for Perfetto.
//!
//! ```text
//!   lib     the layer: a call becomes a line
//!   decode  its arguments       flows  which message of one side is which of the other
//!   sink    file and log  mine  what one thread writes  line   text      ticks  times
//! ```

use std::ffi::CStr;

use vipl_abi::{VIP_ERROR_CODE, VIP_RETURN};
use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Call, Host, Layer, Local, Outcome, read};
use vipl_plugin_sdk::settings::{self, Setting};

mod decode;
mod flows;
mod line;
mod mine;
mod sink;
mod ticks;

use flows::Flows;
use mine::{Mine, Open};
use sink::Sink;
use ticks::ticks;

/// Words of [`Local`]: when the call began, and the name of the message that it sends.
const BEGAN: usize = 0;
const MESSAGE: usize = 1;

/// The layer.
pub struct Trace {
    host: Host,
    sink: Sink,
    flows: Flows,
    results: [String; VIP_RETURN::ALL.len()],
}

impl Layer for Trace {
    const NAME: &'static CStr = c"trace";
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = &[settings::text(
        c"file",
        c"path",
        c"file for Perfetto, %p is the process id; without it calls go to the log at level info",
    )];

    fn new(host: Host) -> Result<Trace, Status> {
        let name = host.value(Self::NAME, c"file");
        let sink = Sink::open(host, name.as_deref()).map_err(|error| {
            host.log(VIPL_LOG_ERROR, &format!("trace: cannot be opened: {error}"));
            Status::Resource
        })?;
        Ok(Trace {
            host,
            sink,
            flows: Flows::default(),
            results: VIP_RETURN::ALL.map(|result| format!("{result:?}")),
        })
    }

    fn before(&self, call: &Call<'_>, local: &mut Local) -> Option<VIP_RETURN> {
        if call.function() == VIPL_CALL_POST_SEND && decode::sends_message(call) {
            self.sink.with(|mine| {
                let flow = self.flows.of(call.argument(0), &mut mine.last);
                local[MESSAGE] = flow.map_or(0, |flow| flow.next_sent());
            });
        }
        local[BEGAN] = ticks();
        if may_wait(call.function()) {
            self.sink.with(|mine| {
                mine.open = Some(Open {
                    function: call.function(),
                    object: call.argument(0),
                    began: local[BEGAN],
                });
            });
        }
        if call.function() == VIPL_CALL_OPEN_NIC {
            self.sink.wake_writer();
        }
        None
    }

    fn after(&self, call: &Call<'_>, local: &mut Local, result: Outcome) {
        let at = ticks();
        let made = self.follow(call, result);
        let ended = Ended { at, result, made };
        self.sink.with(|mine| self.write(mine, call, local, ended));
        if matches!(call.function(), VIPL_CALL_CLOSE_NIC) {
            self.sink.flush_all();
        }
    }

    fn event(&self, event: &vipl_event) {
        let name = match event.kind {
            VIPL_EVENT_ERROR => VIP_ERROR_CODE::of(event.code).map_or_else(
                || format!("error {}", event.code),
                |code| format!("{code:?}"),
            ),
            _ => "handler".to_owned(),
        };
        self.sink.with(|mine| {
            mine.end_polls();
            mine.instant(&name, ticks());
            mine.text.put(",\"args\":{\"ViHandle\":");
            mine.text.hex(event.vi.addr() as u64);
            mine.text.put(",\"DescriptorPtr\":");
            mine.text.hex(event.descriptor.addr() as u64);
            mine.text.put("}},\n");
        });
    }

    fn process_ends(&self) {
        self.sink.flush_all();
    }
}

impl Trace {
    /// Keeps VIs and their connections up to date; returns the number of an object that is made.
    fn follow(&self, call: &Call<'_>, result: Outcome) -> Option<u32> {
        if !result.is_success() {
            return None;
        }
        let first = call.argument(0);
        let out = |number| read::<usize>(call.pointer(number)).map(|handle| handle as u64);
        let vi = match call.function() {
            VIPL_CALL_OPEN_NIC => {
                self.sink.nic_opened();
                return Some(self.flows.nic_made(out(1)?));
            }
            VIPL_CALL_CREATE_CQ => return Some(self.flows.cq_made(out(2)?)),
            VIPL_CALL_CREATE_VI => {
                let handle = out(4)?;
                let number = self.host.vi_number(handle)?;
                return Some(self.flows.vi_made(handle, first, number));
            }
            VIPL_CALL_CLOSE_NIC => {
                self.sink.nic_closed();
                self.flows.destroyed(first);
                return None;
            }
            VIPL_CALL_DESTROY_VI | VIPL_CALL_DESTROY_CQ => {
                self.flows.destroyed(first);
                return None;
            }
            VIPL_CALL_DISCONNECT => {
                self.flows.end(first);
                return None;
            }
            VIPL_CALL_CONNECT_ACCEPT => call.argument(1),
            VIPL_CALL_CONNECT_REQUEST
            | VIPL_CALL_CONNECT_PEER_DONE
            | VIPL_CALL_CONNECT_PEER_WAIT => first,
            _ => return None,
        };
        if let Some(connection) = self.host.connection(vi) {
            self.flows.begin(vi, connection);
        }
        None
    }

    fn write(&self, mine: &mut Mine, call: &Call<'_>, local: &Local, ended: Ended) {
        let began = local[BEGAN];
        let result = ended.result;
        mine.open = None;
        if result.0 == Some(VIP_RETURN::VIP_NOT_DONE) && is_poll(call.function()) {
            mine.poll(call, began, ended.at);
            return;
        }
        let is_short = result.is_success() && decode::is_transfer(call);
        let polls = match is_short {
            true => mine.fold_polls(call),
            false => {
                mine.end_polls();
                0
            }
        };
        let name = call.name().to_str().unwrap_or_default();
        let duration = mine.anchor.ns(ended.at.wrapping_sub(began));
        mine.begin(name, began, duration);
        if local[MESSAGE] != 0 {
            mine.text.put(",\"flow_out\":true,\"bind_id\":");
            mine.text.hex(local[MESSAGE]);
        }
        mine.text.put(",\"args\":{");
        if is_short {
            decode::transfer(call, &self.flows, &mut mine.last, &mut mine.text);
            if polls != 0 {
                mine.text.put("\"polls\":");
                mine.text.decimal(polls);
                mine.text.put(",");
            }
            // Each argument has a comma behind it.
            mine.text.0.pop();
            mine.text.put("}},\n");
        } else {
            decode::arguments_of(call, result.has_outputs(), &mut mine.text);
            if let Some(number) = ended.made {
                mine.text.put("\"number\":");
                mine.text.decimal(number.into());
                mine.text.put(",");
            }
            mine.text.put("\"result\":\"");
            mine.text.put(match result.0 {
                Some(result) => &self.results[result as usize],
                None => "the thread was cancelled",
            });
            mine.text.put("\"}},\n");
        }
        // A wait or a poll may begin before its message is sent, and viewers drop arrows that point back in time.
        if matches!(call.function(), VIPL_CALL_RECV_WAIT | VIPL_CALL_RECV_DONE)
            && let Some(message) = self.arrived(mine, call, result)
        {
            mine.begin("arrives", ended.at, 0);
            mine.text.put(",\"flow_in\":true,\"bind_id\":");
            mine.text.hex(message);
            mine.text.put("},\n");
        }
    }

    /// The name of the message that a call takes off.
    #[inline]
    fn arrived(&self, mine: &mut Mine, call: &Call<'_>, result: Outcome) -> Option<u64> {
        let flow = self.flows.of(call.argument(0), &mut mine.last)?;
        result.is_success().then(|| flow.next_received())
    }
}

/// How a call ended: when, and the number of what it has made.
struct Ended {
    at: u64,
    result: Outcome,
    made: Option<u32>,
}

/// Calls that wait for the peer, or for the agent.
fn may_wait(function: u32) -> bool {
    matches!(
        function,
        VIPL_CALL_SEND_WAIT
            | VIPL_CALL_RECV_WAIT
            | VIPL_CALL_CQ_WAIT
            | VIPL_CALL_CONNECT_WAIT
            | VIPL_CALL_CONNECT_REQUEST
            | VIPL_CALL_CONNECT_ACCEPT
            | VIPL_CALL_CONNECT_PEER_WAIT
            | VIPL_CALL_DISCONNECT
            | VIPL_CALL_OPEN_NIC
            | VIPL_CALL_CLOSE_NIC
    )
}

/// Calls that programs repeat until they find something.
fn is_poll(function: u32) -> bool {
    matches!(
        function,
        VIPL_CALL_SEND_DONE | VIPL_CALL_RECV_DONE | VIPL_CALL_CQ_DONE | VIPL_CALL_CONNECT_PEER_DONE
    )
}

vipl_plugin_sdk::layer!(Trace);

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
use vipl_plugin_sdk::layer::{Call, Host, Layer, Local, Outcome};
use vipl_plugin_sdk::settings::{self, Setting};

mod decode;
mod flows;
mod line;
mod mine;
mod sink;
mod ticks;

use flows::Flows;
use mine::Mine;
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
    const VERSION: &'static CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
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
        None
    }

    fn after(&self, call: &Call<'_>, local: &mut Local, result: Outcome) {
        let ended = ticks();
        self.follow(call, result);
        self.sink
            .with(|mine| self.write(mine, call, local, ended, result));
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
            let at = mine.anchor.at(ticks());
            mine.text.put(&mine.head);
            mine.text.put("\"ph\":\"i\",\"s\":\"t\",\"ts\":");
            mine.text.micros(at);
            mine.text.put(",\"name\":");
            mine.text.quoted(name.as_bytes());
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
    /// Keeps the connections of VIs up to date.
    fn follow(&self, call: &Call<'_>, result: Outcome) {
        let vi = match call.function() {
            VIPL_CALL_CONNECT_ACCEPT => call.argument(1),
            VIPL_CALL_CONNECT_REQUEST
            | VIPL_CALL_CONNECT_PEER_DONE
            | VIPL_CALL_CONNECT_PEER_WAIT => call.argument(0),
            VIPL_CALL_DISCONNECT | VIPL_CALL_DESTROY_VI if result.is_success() => {
                self.flows.end(call.argument(0));
                return;
            }
            _ => return,
        };
        if result.is_success()
            && let Some(connection) = self.host.connection(vi)
        {
            self.flows.begin(vi, connection);
        }
    }

    fn write(&self, mine: &mut Mine, call: &Call<'_>, local: &Local, ended: u64, result: Outcome) {
        let began = local[BEGAN];
        if result.0 == Some(VIP_RETURN::VIP_NOT_DONE) && is_poll(call.function()) {
            mine.poll(call, began, ended);
            return;
        }
        mine.end_polls();
        let name = call.name().to_str().unwrap_or_default();
        let duration = mine.anchor.ns(ended.wrapping_sub(began));
        mine.begin(name, began, duration);
        let received = matches!(call.function(), VIPL_CALL_RECV_DONE | VIPL_CALL_RECV_WAIT);
        if local[MESSAGE] != 0 {
            mine.text.put(",\"flow_out\":true,\"bind_id\":");
            mine.text.hex(local[MESSAGE]);
        } else if received
            && result.is_success()
            && let Some(flow) = self.flows.of(call.argument(0), &mut mine.last)
        {
            mine.text.put(",\"flow_in\":true,\"bind_id\":");
            mine.text.hex(flow.next_received());
        }
        mine.text.put(",\"args\":{");
        decode::arguments_of(call, result.has_outputs(), &mut mine.text);
        mine.text.put("\"result\":\"");
        mine.text.put(match result.0 {
            Some(result) => &self.results[result as usize],
            None => "the thread was cancelled",
        });
        mine.text.put("\"}},\n");
    }
}

/// Calls that programs repeat until they find something.
fn is_poll(function: u32) -> bool {
    matches!(
        function,
        VIPL_CALL_SEND_DONE | VIPL_CALL_RECV_DONE | VIPL_CALL_CQ_DONE | VIPL_CALL_CONNECT_PEER_DONE
    )
}

vipl_plugin_sdk::layer!(Trace);

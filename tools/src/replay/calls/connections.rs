//! Connections. All hosts of then are the one of the device of now; discriminators are those of then.

use std::ffi::c_int;

use vipl_client::raw::abi::*;
use vipl_sys::clock::{self, Instant};

use super::super::file::Call;
use super::super::process::{Nic, Process};
use super::given::{Address, EMPTY, output};
use super::{Outcome, PAUSE, Stage, Taken, made, succeeded};

impl Stage<'_> {
    /// # Safety
    /// As `make` says.
    pub(super) unsafe fn connection(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let vi_then = call.number("ViHandle");
        let vi = process.handle(vi_then);
        let request = process.handle(call.number("ConnHandle"));
        let mut attributes = EMPTY;
        let peer = output(call, "RemoteViAttribs", &raw mut attributes);
        let address = |nic: &Nic, name| Address::of(call, name, nic, self.is_recorded);
        let (_, nic) = process.nic_of(vi_then);
        let (mut local, mut remote) = (address(&nic, "LocalAddr"), address(&nic, "RemoteAddr"));
        let was_late = call.result == "VIP_TIMEOUT";
        // SAFETY: as the caller says.
        let code = unsafe {
            match call.name.as_str() {
                "VipConnectWait" => {
                    let then = call.number("NicHandle");
                    let mut local = address(&process.nic(then), "LocalAddr");
                    let mut remote = Address::new(&[], &[]);
                    let remote = output(call, "RemoteAddr", remote.net());
                    let wait = |time, out| {
                        let out = output(call, "ConnHandle", out);
                        let nic = process.nic_handle(then);
                        (f.VipConnectWait)(nic, local.net(), time, remote, peer, out)
                    };
                    let (code, out) = match self.take(process, call, wait) {
                        Taken::Now(code, out) => (code, out),
                        Taken::Early => return Some(Outcome::Early),
                    };
                    if succeeded(code) {
                        process.add(call.number("ConnHandle"), out);
                    }
                    code
                }
                "VipConnectAccept" => (f.VipConnectAccept)(request, vi),
                "VipConnectReject" => (f.VipConnectReject)(request),
                "VipConnectRequest" => {
                    let time = self.time(call, was_late);
                    let limit = Instant::now() + self.patience;
                    loop {
                        let code = (f.VipConnectRequest)(vi, local.net(), remote.net(), time, peer);
                        // The server may be later than it was then.
                        let early = code == VIP_RETURN::VIP_NO_MATCH as c_int
                            && call.result != "VIP_NO_MATCH";
                        if !early || Instant::now() >= limit {
                            break code;
                        }
                        clock::sleep(PAUSE);
                    }
                }
                "VipConnectPeerRequest" => {
                    let time = self.time(call, call.expires);
                    (f.VipConnectPeerRequest)(vi, local.net(), remote.net(), time)
                }
                "VipConnectPeerDone" => self.poll(|| (f.VipConnectPeerDone)(vi, peer)),
                "VipConnectPeerWait" => (f.VipConnectPeerWait)(vi, peer),
                "VipDisconnect" => (f.VipDisconnect)(vi),
                _ => return None,
            }
        };
        if let Some(connection) = call.connection() {
            process.connected(vi_then, connection);
        }
        Some(made(code))
    }

    /// How long a request may last: as then if no peer answered it then. No time at all is a mistake of then.
    fn time(&self, call: &Call, was_late: bool) -> VIP_ULONG {
        match call.text("Timeout") {
            _ if was_late => self.as_long_as_then(call),
            Some("0x0") => 0,
            _ => self.milliseconds(),
        }
    }
}

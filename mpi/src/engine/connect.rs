//! The handshake. VIPL carries no data with a connection request, so every request is accepted by a VI, and what
//! libfabric's programs pass at connecting travels in the first messages.
//!
//! ```text
//!   fi_connect ── VipConnectRequest ─────────▶ VipConnectWait, VipConnectAccept
//!              ── Hello ─────────────────────▶ FI_CONNREQ
//!   FI_CONNECTED ◀──────────────────── Accept ── fi_accept, FI_CONNECTED
//!   error FI_ECONNREFUSED ◀─────────── Reject ── fi_reject
//! ```

use vipl_sys::clock::Instant;

use super::Shared;
use super::queues::Opaque;
use crate::address::Address;
use crate::attributes::Offer;
use crate::fi::fid;
use crate::slab::Id;

/// A listener.
pub(crate) struct Passive {
    pub address: Address,
    pub events: Option<Id>,
    pub fid: Opaque<fid>,
    pub offer: Offer,
    /// The endpoint for messages with tags that listens here.
    pub tagged: Option<Id>,
}

/// Where a connection request came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    pub passive: Id,
    /// When the peer was given its VI, or its rejection: since then it is the peer's turn.
    pub since: Instant,
}

/// Attempts of [`crate::settings::Settings::connect_timeout`] before a call fails.
const ATTEMPTS: u32 = 2;

impl Shared {
    /// Whether to try an address. After attempts that have failed the next call does as well, once: `ofi_rxm` repeats a refused
    /// request, and a job whose ranks cannot reach each other would wait for ever.
    pub(crate) fn may_try(&mut self, peer: Address) -> bool {
        let failed = self.failures.get(&peer.to_bytes()).copied().unwrap_or(0);
        if failed >= ATTEMPTS {
            self.failures.remove(&peer.to_bytes());
        }
        failed < ATTEMPTS
    }

    /// A connection is established.
    pub(crate) fn reached(&mut self, peer: Address) {
        self.failures.remove(&peer.to_bytes());
    }

    /// An attempt has failed, with this code of VipConnectRequest.
    pub(crate) fn not_reached(&mut self, peer: Address, code: i32) {
        if self.failures.len() < FAILURES {
            *self.failures.entry(peer.to_bytes()).or_default() += 1;
        }
        let device = self.settings.device.as_str();
        let local = ["via_lo", "/dev/via_lo", "loopback", "VINIC"]
            .iter()
            .any(|name| device.starts_with(name));
        let hint = match local {
            true => {
                "; this device does not leave its host: for several hosts set FI_VIPL_DEVICE, for example to ip:"
            }
            false => "",
        };
        let time = self.settings.connect_timeout.as_millis();
        crate::libfabric::say(&format!(
            "no connection to {} over {device} in {time} ms, FI_VIPL_CONNECT_TIMEOUT (VipConnectRequest: {code}){hint}",
            peer.to_ip()
        ));
    }
}

/// Addresses that are remembered.
const FAILURES: usize = 4096;

//! Disconnecting: VipDisconnect, and the loss of a peer (spec §3.12, §9.6).
//!
//! An attempt belongs to a VI as long as `Vi::attempt` names its call. VipDisconnect clears it; a connection
//! that the agent reports afterwards is undone.

use kagent_proto::{Cancel, Op};
use vipl_abi::*;
use vipl_pages::record::Happened;
use vipl_plugin_abi::VIPL_CAUSE_DISCONNECTED;

use crate::agent::Side;
use crate::error::Error;
use crate::object::table::Guard;
use crate::vi::state::{self, CONNECTED, ERROR, IDLE};
use crate::vi::{self, Pending, Vi, Which, complete};

/// VipDisconnect.
pub fn disconnect(handle: VIP_VI_HANDLE) -> Result<(), Error> {
    let mut vi = vi::lock(handle)?;
    let attempt = vi.attempt.take();
    vi.happened(Happened::Disconnected);
    if let Some(peer) = vi.peer.take() {
        peer.result.complete(Err(Error::Timeout));
    }
    let connection = detach(&mut vi);
    if vi.abi.state != IDLE {
        let before = state::name(vi.abi.state);
        log::debug!(target: "vi", "VI {handle:?}: {before} -> Idle (VipDisconnect)");
    }
    vi.set_state(IDLE);
    vi.epoch += 1;
    complete::flush(&mut vi, Which::Send);
    complete::flush(&mut vi, Which::Recv);
    let nic = vi.nic.clone();
    drop(vi);
    nic.events.forget_breaks(handle);
    if let Some(Pending { call, result, .. }) = attempt {
        match nic.registration.here() {
            Some((agent, _)) => drop(agent.call(Op::CANCEL, &Cancel { call }, &[])),
            None => nic.agents().wake_keeper(),
        }
        // Whether the agent has replied to it or not.
        result.complete(Err(Error::Timeout));
    }
    if let Some(side) = connection {
        nic.agents().connections.disconnect(side);
    }
    Ok(())
}

/// Processes the agent's report that the peer of a VI has disconnected or exited. Runs on the reading thread.
pub(super) fn peer_gone(vi: usize, side: Side, orderly: bool) {
    let handle = std::ptr::without_provenance_mut(vi);
    if let Ok(mut vi) = vi::lock(handle) {
        vi.nic.agents().connections.peer_gone(side);
        end(&mut vi, side, orderly);
    }
}

/// Detaches the VI from its connection.
pub(super) fn detach(vi: &mut Guard<Vi>) -> Option<Side> {
    let connection = vi.connection.take()?;
    // Descriptors that the peer has acknowledged are completed, not flushed (COMPAT-08).
    vi.progress();
    vi.detach();
    vi.publish_no_peer();
    Some(connection)
}

/// Ends the connection of a VI whose peer has disconnected or exited.
fn end(vi: &mut Guard<Vi>, side: Side, orderly: bool) {
    if vi.connection != Some(side) || vi.abi.state != CONNECTED {
        return;
    }
    log::debug!(
        target: "cm",
        "VI {:?}: the peer {}", vi.handle, if orderly { "has disconnected" } else { "is gone" }
    );
    vi.happened(Happened::PeerEnded(orderly));
    vi.report_peer_gone(orderly);
    // The last messages of a peer on another host may still be in transit; then the plug-in fails the VI
    // later.
    if vi.abi.state != ERROR && !(orderly && vi.remote) {
        let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
        let cause = if orderly {
            VIPL_CAUSE_DISCONNECTED
        } else {
            lost
        };
        vi.fail(cause, 0, std::ptr::null_mut());
    }
}

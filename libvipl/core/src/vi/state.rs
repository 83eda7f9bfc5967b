//! The states of a VI (spec §4.1).

use vipl_abi::VIP_VI_STATE;

/// The values of `vipl_vi.state`.
pub(crate) const IDLE: u32 = VIP_VI_STATE::VIP_STATE_IDLE as u32;
pub(crate) const CONNECTED: u32 = VIP_VI_STATE::VIP_STATE_CONNECTED as u32;
pub(crate) const PENDING: u32 = VIP_VI_STATE::VIP_STATE_CONNECT_PENDING as u32;
pub(crate) const ERROR: u32 = VIP_VI_STATE::VIP_STATE_ERROR as u32;

/// Name of a state in messages.
pub(crate) fn name(state: u32) -> &'static str {
    match state {
        IDLE => "Idle",
        CONNECTED => "Connected",
        PENDING => "Connect Pending",
        _ => "Error",
    }
}

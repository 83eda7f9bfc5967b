//! VIA over frames: the protocol that hosts speak with each other. It knows no socket, clock, thread or
//! random source; time and frames come in as arguments, frames and deadlines go out.

/// Ethertype of frames that carry data between two VIs. One of the two that are set aside for local
/// experiments.
pub const ETHERTYPE: u16 = 0x88B5;
/// Ethertype of frames by which Kernel Agents set connections up: another one, so that the kernel does
/// not offer each data frame to the agents as well.
pub const SETUP_ETHERTYPE: u16 = 0x88B6;

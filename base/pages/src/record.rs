//! Entries of the flight recorder: events of a VI, each with its time.

/// What happened to a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It was created.
    Created,
    /// It went from one `VIP_STATE_*` to another.
    State(u8, u8),
    /// It asked a server, or as one of two peers, for a connection.
    Requested,
    /// It is to accept a client.
    Accepting,
    /// It is connected with a process of this host; 0: with another host.
    Connected(u32),
    /// There is no connection after an attempt; the agent's status, or 0.
    NotConnected(u32),
    /// The peer has disconnected, or (false) exited.
    PeerEnded(bool),
    /// The application called VipDisconnect.
    Disconnected,
    /// An asynchronous error, `VIP_ERROR_*`, and the operation, `VIP_STATUS_OP_*`.
    Error(u32, u32),
    /// A descriptor of the send queue (true) or the receive queue completed with this Status, which has an error.
    Failed(bool, u32),
    /// Something of a later version: its number and argument.
    Other(u8, u64),
}

impl Happened {
    /// Number, in the low 8 bits, and argument, for the record.
    pub fn word(self) -> u64 {
        let (kind, argument) = match self {
            Happened::Created => (1, 0),
            Happened::State(from, to) => (2, u64::from(from) | u64::from(to) << 8),
            Happened::Requested => (3, 0),
            Happened::Accepting => (4, 0),
            Happened::Connected(process) => (5, process.into()),
            Happened::NotConnected(status) => (6, status.into()),
            Happened::PeerEnded(orderly) => (7, orderly.into()),
            Happened::Disconnected => (8, 0),
            Happened::Error(code, operation) => {
                (9, u64::from(code) & 0xFF_FFFF | u64::from(operation) << 24)
            }
            Happened::Failed(send, status) => (10, u64::from(status) | u64::from(send) << 32),
            Happened::Other(kind, argument) => (kind, argument),
        };
        u64::from(kind) | argument << 8
    }

    /// What this word says; any word says something.
    pub fn of(word: u64) -> Happened {
        let (kind, argument) = (word as u8, word >> 8);
        let (low, high) = (argument as u32, (argument >> 32) as u32);
        match kind {
            1 => Happened::Created,
            2 => Happened::State(low as u8, (low >> 8) as u8),
            3 => Happened::Requested,
            4 => Happened::Accepting,
            5 => Happened::Connected(low),
            6 => Happened::NotConnected(low),
            7 => Happened::PeerEnded(argument != 0),
            8 => Happened::Disconnected,
            9 => Happened::Error(low & 0xFF_FFFF, (argument >> 24) as u32),
            10 => Happened::Failed(high != 0, low),
            _ => Happened::Other(kind, argument),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read() {
        for happened in [
            Happened::Created,
            Happened::State(2, 3),
            Happened::Requested,
            Happened::Accepting,
            Happened::Connected(u32::MAX),
            Happened::NotConnected(4),
            Happened::PeerEnded(true),
            Happened::PeerEnded(false),
            Happened::Disconnected,
            Happened::Error(10, 0x8002_0000),
            Happened::Failed(true, 0x0001_0021),
            Happened::Failed(false, 3),
            Happened::Other(99, 7),
        ] {
            assert_eq!(Happened::of(happened.word()), happened);
        }
    }
}

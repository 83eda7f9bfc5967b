//! Arguments as the program gave them: pointers to values of now, to nothing, or bad ones.

use vipl_client::raw::abi::*;

use super::super::file::Call;
use super::super::process::{BAD, Nic, Process};

/// Room for an address that the library writes.
const ADDRESS_ROOM: usize = 4 + 2 * 256;

pub(super) fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

/// Zeros that are read in place of what could not be read then. The library had refused the call before it looked there, or the program
/// had ended: it does not catch faults of all pointers.
pub(super) fn nothing<T>() -> *mut T {
    static ZEROS: [u64; 128] = [0; 128];
    const { assert!(size_of::<T>() <= size_of::<[u64; 128]>() && align_of::<T>() <= 8) };
    ZEROS.as_ptr().cast_mut().cast()
}

/// An address at which no process has memory, for functions that look before they touch it.
pub(super) fn bad<T>() -> *mut T {
    std::ptr::with_exposed_provenance_mut(BAD)
}

pub(super) fn was_refused(call: &Call) -> bool {
    call.result == "VIP_INVALID_PARAMETER"
}

/// Where the library writes: `here`, unless the program gave NULL and was refused.
pub(super) fn output<T>(call: &Call, name: &str, here: *mut T) -> *mut T {
    match call.text(name) {
        Some("0x0") if was_refused(call) => null(),
        _ => here,
    }
}

/// What the library reads: `value`; NULL if the program gave that, and zeros if it gave a bad address.
pub(super) fn input<T, V>(call: &Call, name: &str, value: Option<&mut V>) -> *mut T {
    match value {
        _ if call.text(name) == Some("bad") => nothing(),
        Some(value) => (&raw mut *value).cast(),
        None => null(),
    }
}

/// Whether the program gave a handler.
pub(super) fn has_handler(call: &Call) -> bool {
    call.text("Handler") != Some("0x0")
}

pub(super) const EMPTY: VIP_VI_ATTRIBUTES = VIP_VI_ATTRIBUTES {
    ReliabilityLevel: 0,
    MaxTransferSize: 0,
    QoS: std::ptr::null_mut(),
    Ptag: std::ptr::null_mut(),
    EnableRdmaWrite: 0,
    EnableRdmaRead: 0,
};

pub(super) fn vi_attributes(process: &Process, call: &Call) -> Option<VIP_VI_ATTRIBUTES> {
    // Older files have no QoS.
    let (level, bytes, tag, write, read, qos) = match call.numbers("ViAttribs")?[..] {
        [level, bytes, tag, write, read] => (level, bytes, tag, write, read, 0),
        [level, bytes, tag, write, read, qos] => (level, bytes, tag, write, read, qos),
        _ => return None,
    };
    Some(VIP_VI_ATTRIBUTES {
        ReliabilityLevel: level as VIP_RELIABILITY_LEVEL,
        MaxTransferSize: bytes as VIP_ULONG,
        Ptag: process.handle(tag),
        EnableRdmaWrite: write as VIP_BOOLEAN,
        EnableRdmaRead: read as VIP_BOOLEAN,
        QoS: std::ptr::without_provenance_mut(qos as usize),
    })
}

pub(super) fn mem_attributes(process: &Process, call: &Call) -> Option<VIP_MEM_ATTRIBUTES> {
    let [tag, write, read] = call.numbers("MemAttribs")?[..] else {
        return None;
    };
    Some(VIP_MEM_ATTRIBUTES {
        Ptag: process.handle(tag),
        EnableRdmaWrite: write as VIP_BOOLEAN,
        EnableRdmaRead: read as VIP_BOOLEAN,
    })
}

/// A network address.
pub(super) struct Address {
    /// Its bytes; words, for the alignment.
    words: Vec<u32>,
    /// In place of its address.
    instead: Option<*mut VIP_NET_ADDRESS>,
}

impl Address {
    pub(super) fn new(host: &[u8], discriminator: &[u8]) -> Address {
        let lengths = [host.len(), discriminator.len()].map(|length| (length as u16).to_ne_bytes());
        let bytes = [&lengths.concat()[..], host, discriminator].concat();
        let mut words = vec![0; bytes.len().max(ADDRESS_ROOM).div_ceil(4)];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(4)) {
            let mut whole = [0; 4];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u32::from_ne_bytes(whole);
        }
        Address {
            words,
            instead: None,
        }
    }

    /// The argument of a call. All hosts of then are the device's of now, and discriminators stay; a host of a wrong length stays
    /// one, and one that no recorded process had is a host that the device does not have.
    pub(super) fn of(
        call: &Call,
        name: &str,
        nic: &Nic,
        is_recorded: impl Fn(&[u8]) -> bool,
    ) -> Address {
        let Some((host, point)) = call.address(name) else {
            let instead = match call.text(name) {
                Some("bad") => nothing(),
                _ => null(),
            };
            return Address {
                instead: Some(instead),
                ..Address::new(&[], &[])
            };
        };
        if was_refused(call) && host.len() != nic.host.len() {
            return Address::new(&host, &point);
        }
        if call.result == "VIP_SUCCESS" || is_recorded(&host) {
            return Address::new(&nic.host, &point);
        }
        Address::new(&stranger(&nic.host), &point)
    }

    pub(super) fn net(&mut self) -> *mut VIP_NET_ADDRESS {
        self.instead.unwrap_or(self.words.as_mut_ptr().cast())
    }
}

/// An address that is none of this NIC's.
pub(super) fn stranger(host: &[u8]) -> Vec<u8> {
    let mut other = host.to_vec();
    // In the middle: not the port of an IP address, nor the bits of an Ethernet address that make it a group's.
    let middle = other.len() / 2;
    if let Some(byte) = other.get_mut(middle) {
        *byte ^= 0x55;
    }
    other
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::file::Recording;

    #[test]
    fn addresses_are_of_the_device_of_now() {
        let text = "vipl-record 1 1 b\n\
                    1 1 2 VipConnectRequest VIP_NO_MATCH LocalAddr=0a0b/61 RemoteAddr=0c0d/6263\n\
                    1 3 4 VipConnectRequest VIP_INVALID_PARAMETER LocalAddr=0a/61 RemoteAddr=bad\n\
                    1 5 6 VipConnectRequest VIP_INVALID_PARAMETER LocalAddr=- RemoteAddr=0a0b/61\n";
        let calls = Recording::parse("r", text).expect("a recording").calls;
        let nic = Nic {
            host: vec![1, 2],
            ..Nic::default()
        };
        let given = |call: usize, name| {
            let mut address = Address::of(&calls[call], name, &nic, |host| host == [0x0a, 0x0b]);
            let net = address.net().addr();
            let bytes: Vec<u8> = address
                .words
                .iter()
                .flat_map(|word| word.to_ne_bytes())
                .collect();
            (net, bytes[..7].to_vec())
        };
        assert_eq!(given(0, "LocalAddr").1, [2, 0, 1, 0, 1, 2, b'a']);
        assert_eq!(given(0, "RemoteAddr").1, [2, 0, 2, 0, 1, 2 ^ 0x55, b'b']);
        assert_eq!(given(1, "LocalAddr").1[..6], [1, 0, 1, 0, 0x0a, b'a']);
        let zeros: *mut u8 = nothing();
        assert_eq!(given(1, "RemoteAddr").0, zeros.addr());
        assert_eq!(given(2, "LocalAddr").0, 0);
    }
}

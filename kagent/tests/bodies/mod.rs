//! Valid messages to the agent, which tests modify.
#![allow(dead_code, unreachable_pub)]

use kagent_proto::*;
use zerocopy::{Immutable, IntoBytes};

pub fn packet<T: IntoBytes + Immutable>(op: Op, id: u64, body: &T) -> Vec<u8> {
    let length = body.as_bytes().len() as u32;
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        op: op.0,
        length,
        status: 0,
        id,
    };
    [header.as_bytes(), body.as_bytes()].concat()
}

pub fn nic_open(name: &str, host: &[u8]) -> NicOpen {
    let mut body = NicOpen {
        provider: [0; PROVIDER_BYTES],
        host_len: host.len() as u16,
        reserved: [0; 3],
        host: [0; HOST_BYTES_MAX],
        link: 0,
        // Data has the same destination as calls.
        data_address: DataAddress::new(host).expect("a short address"),
    };
    body.provider[..name.len()].copy_from_slice(name.as_bytes());
    body.host[..host.len()].copy_from_slice(host);
    body
}

/// A NIC on a link.
pub fn nic_on(name: &str, opened: &LinkOpened) -> NicOpen {
    NicOpen {
        host_len: opened.host_len,
        host: opened.host,
        link: opened.link,
        data_address: DataAddress::NONE,
        ..nic_open(name, &[])
    }
}

pub fn device_open(name: &str) -> DeviceOpen {
    let mut device = [0; DEVICE_BYTES];
    device[..name.len()].copy_from_slice(name.as_bytes());
    DeviceOpen { device }
}

pub fn link_open(name: &str) -> LinkOpen {
    let mut body = LinkOpen {
        interface: [0; LINK_BYTES],
    };
    body.interface[..name.len()].copy_from_slice(name.as_bytes());
    body
}

pub fn attributes() -> Attributes {
    Attributes {
        max_transfer_size: 65536,
        qos: 0,
        reliability: 2,
        rdma_write: 1,
        rdma_read: 0,
        reserved: 0,
    }
}

pub fn wait(nic: u64, disc: &[u8], timeout_ms: u64) -> Wait {
    Wait {
        nic,
        timeout_ms,
        local: Point::new(b"", disc).expect("short"),
        reserved: 0,
    }
}

/// No grace period, a timeout of one second.
pub fn request(nic: u64, host: &[u8], disc: &[u8]) -> Request {
    Request {
        nic,
        vi: 77,
        timeout_ms: 1000,
        grace_ms: 0,
        segment_bytes: 0,
        reserved: 0,
        attributes: attributes(),
        local: Point::new(b"", b"my-own").expect("short"),
        remote: Point::new(host, disc).expect("short"),
    }
}

pub fn peer(nic: u64, local: &[u8], host: &[u8], disc: &[u8]) -> Request {
    Request {
        local: Point::new(b"", local).expect("short"),
        ..request(nic, host, disc)
    }
}

pub fn accept(connection: u64) -> Accept {
    Accept {
        connection,
        vi: 88,
        attributes: attributes(),
        segment_bytes: 0,
        reserved: 0,
    }
}

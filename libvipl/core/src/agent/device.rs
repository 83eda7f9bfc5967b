//! Connections to device processes, which plug-ins request from the Kernel Agent.
//!
//! A device process is a NIC in software, outside the application. The agent starts it and connects it with
//! the application; plug-in and device define the messages on the socket.

use std::ffi::c_int;
use std::os::fd::OwnedFd;

use kagent_proto::{DEVICE_BYTES, DeviceOpen, DeviceOpened, Op, Status};
use vipl_plugin_abi::*;

use super::keeper::Agents;
use crate::error::Error;

/// Requests a connection from the agent; returns the socket and the device's process id.
pub(crate) fn open(agents: &'static Agents, name: &str) -> Result<(OwnedFd, u32), c_int> {
    let mut body = DeviceOpen {
        device: [0; DEVICE_BYTES],
    };
    if name.len() < DEVICE_BYTES {
        body.device[..name.len()].copy_from_slice(name.as_bytes());
    }
    if !body.is_valid() {
        log::error!(target: "device", "{name:?} is not a valid device name");
        return Err(VIPL_E_INVALID);
    }
    let _use = agents.begin_use();
    let agent = agents.want();
    let agent = agent.map_err(|_: Error| VIPL_E_RESOURCE)?;
    let mut reply = agent.call(Op::DEVICE_OPEN, &body, &[]);
    let opened: Option<DeviceOpened> = (reply.op == Op::DEVICE_OPENED)
        .then(|| reply.body())
        .flatten();
    match (opened, reply.fds.pop()) {
        (Some(opened), Some(socket)) => Ok((socket, opened.pid)),
        _ if reply.status == Status::INVALID => {
            log::error!(
                target: "device",
                "the running Kernel Agent, {}, has no program vipl-{name} beside it: it belongs to another installation than this library ({}), or the program is missing or not executable; install it there, end that agent when its programs have exited, or set VIPL_AGENT",
                agent.description(),
                super::launch::library_path().unwrap_or_default().display()
            );
            Err(VIPL_E_INVALID)
        }
        _ => {
            log::error!(target: "device", "the Kernel Agent, {}, cannot start vipl-{name}; its log says why", agent.description());
            Err(VIPL_E_RESOURCE)
        }
    }
}

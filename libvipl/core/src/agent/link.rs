//! Data sockets on network interfaces, which plug-ins request from the Kernel Agent.
//!
//! Only the agent may open such a socket. The socket is bound, filtered and locked; the plug-in owns it.
//! Errors are logged here with advice, since the application only learns that the device does not open.

use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use kagent_proto::{LINK_BYTES, LinkOpen, LinkOpened, Op, Status};
use log::Level;
use vipl_plugin_abi::*;

use super::keeper::Agents;
use crate::error::Error;

/// Prefix of the name of a link over UDP.
const UDP: &str = "udp:";
/// The same, for a program that requires a secret.
const SEALED: &str = "sealed-";

/// The call for the link of this name; `None` if the name is not valid.
fn call_about(agents: &Agents, name: &str) -> Option<LinkOpen> {
    let sealed = name.starts_with(UDP) && !agents.settings().text("secret_file").is_empty();
    let name = &format!("{}{name}", if sealed { SEALED } else { "" });
    let mut body = LinkOpen {
        interface: [0; LINK_BYTES],
    };
    let room = body.interface[..LINK_BYTES - 1].get_mut(..name.len())?;
    room.copy_from_slice(name.as_bytes());
    (!name.is_empty()).then_some(body)
}

/// `vipl_host.link_ask`.
pub(crate) fn ask(agents: &'static Agents, name: &str) -> c_int {
    let Some(body) = call_about(agents, name) else {
        return VIPL_E_INVALID;
    };
    let _use = agents.begin_use();
    let Ok(agent) = agents.want() else {
        return VIPL_E_RESOURCE;
    };
    match agent.call(Op::LINK_ASK, &body, &[]).status {
        // The interfaces of another network namespace are not those of this process.
        _ if !is_own_network(agent.network()) => VIPL_E_RESOURCE,
        Status::OK => VIPL_OK,
        Status::INVALID => VIPL_E_INVALID,
        Status::NOT_PERMITTED | Status::NO_PRIVILEGE | Status::NO_SYSTEM_AGENT => {
            VIPL_E_NOT_PERMITTED
        }
        _ => VIPL_E_RESOURCE,
    }
}

/// Requests a data socket. The caller owns the descriptor in the result.
fn open(agents: &'static Agents, name: &str) -> Result<vipl_link, c_int> {
    let Some(body) = call_about(agents, name) else {
        log::warn!(target: "link", "{name:?} is not a valid name of a link");
        return Err(VIPL_E_INVALID);
    };
    let _use = agents.begin_use();
    let agent = agents.want();
    let agent = agent.map_err(|_: Error| VIPL_E_RESOURCE)?;
    check_network(name, agent.network())?;
    let mut reply = agent.call(Op::LINK_OPEN, &body, &[]);
    let opened: Option<LinkOpened> = (reply.op == Op::LINK_OPENED)
        .then(|| reply.body())
        .flatten();
    let (Some(opened), Some(socket)) = (opened, reply.fds.pop()) else {
        return Err(refusal(name, reply.status, &agent.description()));
    };
    let trains = reply.fds.pop().map_or(-1, IntoRawFd::into_raw_fd);
    let socket = socket.into_raw_fd();
    if name.starts_with(UDP) {
        agents.issued.keep(socket, &opened);
    }
    Ok(vipl_link {
        size: size_of::<vipl_link>(),
        fd: socket,
        interface_index: opened.interface_index,
        mtu: opened.mtu,
        speed_mbit: opened.speed_mbit,
        endpoint: opened.endpoint,
        address_len: opened.host_len,
        address: opened.host,
        name: opened.interface.map(|byte| byte as c_char),
        driver: opened.driver.map(|byte| byte as c_char),
        id: opened.link,
        trains,
    })
}

/// Number of this process's network namespace; 0: unknown.
fn own_network() -> u64 {
    std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}

fn is_own_network(theirs: u32) -> bool {
    let ours = own_network();
    ours == 0 || theirs == 0 || ours == u64::from(theirs)
}

/// The agent's interfaces are those of its own network namespace. In another one the same name denotes
/// another interface, or the same one by mistake, for example if two containers share `/run/vipl`.
fn check_network(name: &str, theirs: u32) -> Result<(), c_int> {
    if is_own_network(theirs) {
        return Ok(());
    }
    let ours = own_network();
    log::error!(
        target: "link",
        "{name}: the running Kernel Agent is in another network namespace (net:[{theirs}], this program is in net:[{ours}]) and serves the interfaces there; start `vipkad --system --socket PATH` in this one and set VIPL_AGENT=PATH"
    );
    Err(VIPL_E_RESOURCE)
}

/// Whether the requirements of Ethernet have been logged.
static LOGGED: AtomicBool = AtomicBool::new(false);

/// Whether a link is requested by a link-local address.
fn is_on_link(name: &str) -> bool {
    let argument = name.strip_prefix(UDP).unwrap_or_default();
    let address = argument.split('%').next().unwrap_or_default();
    address
        .parse::<std::net::Ipv6Addr>()
        .is_ok_and(|address| address.is_unicast_link_local())
}

/// Logs why no socket was issued.
fn refusal(name: &str, status: Status, agent: &str) -> c_int {
    let what_to_do = match status {
        Status::NOT_PERMITTED => {
            "this user may not use raw Ethernet: the running Kernel Agent allows it to root and to the members of a group (`vipkad --link-group`, usually vipl); run `usermod -aG vipl USER` as root, then log in again, or `newgrp vipl`"
        }
        Status::NO_PRIVILEGE => {
            "the system's Kernel Agent itself may not use raw Ethernet: start it as root, or with the capability CAP_NET_RAW"
        }
        Status::NO_SYSTEM_AGENT => {
            "Ethernet needs `vipkad --system`, started by root, and the user in the group vipl; the running Kernel Agent is this user's own and may not use raw Ethernet (with VIPL_AGENT=auto, a system agent is found at /run/vipl/kagent.sock)"
        }
        _ => "",
    };
    match status {
        Status::INVALID if is_on_link(name) => {
            log::warn!(
                target: "link",
                "{name}: an address of IPv6 that is valid on one link only (fe80::) cannot be told to other hosts; use another one of this host"
            );
            VIPL_E_INVALID
        }
        Status::INVALID if name.starts_with(UDP) => {
            log::warn!(target: "link", "{name}: this host has no such address or interface that others can reach");
            VIPL_E_INVALID
        }
        Status::BUSY if name.starts_with(UDP) => {
            log::error!(
                target: "link",
                "{name}: the UDP port of the Kernel Agent is taken by another program, whose user its log names (VIPL_UDP_PORT or vipkad --udp-port, otherwise 34998 for the system's); that agent is {agent}"
            );
            VIPL_E_RESOURCE
        }
        Status::NO_PRIVILEGE if name.starts_with(UDP) => {
            log::error!(
                target: "link",
                "{name}: the Kernel Agent may not use the UDP port that it was told to use (VIPL_UDP_PORT, vipkad --udp-port); that agent is {agent}"
            );
            VIPL_E_NOT_PERMITTED
        }
        Status::NO_SECRET => {
            log::error!(
                target: "link",
                "{name}: the Kernel Agent cannot use its file with a secret (VIPL_SECRET_FILE, vipkad --secret-file): the file must belong to its user, be closed to others, and have 16 to 4096 bytes; that agent is {agent}"
            );
            VIPL_E_RESOURCE
        }
        Status::NOT_SEALED => {
            log::error!(
                target: "link",
                "{name}: VIPL_SECRET_FILE names a secret, and the Kernel Agent that runs has none, so it could not protect this program: start `vipkad --secret-file FILE` in its place, or wait until it has left; that agent is {agent}"
            );
            VIPL_E_RESOURCE
        }
        Status::OTHER_NETWORK => {
            log::error!(
                target: "link",
                "{name}: this program is in another network namespace than the Kernel Agent, and gets no socket of that one; start `vipkad --socket PATH` in this one and set VIPL_AGENT=PATH; that agent is {agent}"
            );
            VIPL_E_RESOURCE
        }
        Status::INVALID => {
            log::warn!(target: "link", "{name}: no such network interface, or not Ethernet");
            VIPL_E_INVALID
        }
        Status::NOT_PERMITTED | Status::NO_PRIVILEGE | Status::NO_SYSTEM_AGENT => {
            // The reason applies to every interface, so one line at the default level is enough.
            let first = !LOGGED.swap(true, Ordering::Relaxed);
            let level = if first { Level::Error } else { Level::Info };
            log::log!(
                target: "link",
                level,
                "{name}: {what_to_do}; that agent is {agent}"
            );
            // The reason was logged for another interface, so the plug-in need not log one.
            crate::logger::mark_logged(Level::Error);
            VIPL_E_NOT_PERMITTED
        }
        Status::BUSY => {
            log::error!(
                target: "link",
                "{name}: the Kernel Agent of another user serves this interface; one `vipkad --system` serves all users"
            );
            VIPL_E_RESOURCE
        }
        _ => {
            log::error!(target: "link", "{name}: the Kernel Agent, {agent}, cannot open a socket; its log says why");
            VIPL_E_RESOURCE
        }
    }
}

/// `vipl_host.link`.
///
/// # Safety
/// `out` points to as many bytes as its first word states.
pub(crate) unsafe fn open_for_plugin(
    agents: &'static Agents,
    name: &str,
    out: *mut vipl_link,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let room = unsafe { (*out).size }.min(size_of::<vipl_link>());
    match open(agents, name) {
        Ok(mut link) => {
            link.size = room;
            if room < offset_of!(vipl_link, trains) + size_of::<c_int>() {
                // An older plug-in does not know this one.
                // SAFETY: -1, or a descriptor of which this is the only owner.
                drop((link.trains >= 0).then(|| unsafe { OwnedFd::from_raw_fd(link.trains) }));
            }
            // SAFETY: `room` is within both.
            unsafe {
                std::ptr::copy_nonoverlapping((&raw const link).cast::<u8>(), out.cast(), room);
            }
            VIPL_OK
        }
        Err(status) => status,
    }
}

//! VipOpenNic and VipCloseNic (spec §3.1, §3.2): from the name of a device to a NIC handle, and its end.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::agent::NicRegistration;
use crate::connect;
use crate::error::Error;
use crate::nic::shared::Shared;
use crate::nic::{self, idle};
use crate::object::barrier::{self, Registering};
use crate::plugin::loaded::LoadedPlugin;
use crate::plugin::map::{self, Nowhere, Route};
use crate::poller;
use crate::process::{self, Process};
use crate::settings::Settings;
use crate::text::{hexadecimal, levels};
use crate::vi::failure;

mod check;
#[cfg(test)]
mod tests;

use check::{check_info, refused};

/// Longest device name in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Prepares process-wide state, so that no later call on the data path has to.
fn prepare() -> (&'static Process, Registering) {
    vipl_guard::install();
    let process = process::get();
    idle::prepare(&process.settings);
    (process, barrier::begin(&process.registering))
}

/// VipOpenNic.
pub fn open(name: &CStr) -> Result<VIP_NIC_HANDLE, Error> {
    let (process, registering) = prepare();
    // One use of the agent, from the search for the device to the NIC.
    let _use = process.agents.begin_use();
    let name = name.to_str().map_err(|_| Error::InvalidParameter)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        log::warn!(target: "nic", "cannot open {name:?}: a device name has 1 to {NAME_BYTES_MAX} bytes");
        return Err(Error::InvalidParameter);
    }
    let route = map::find(process, name).map_err(|why| match why {
        Nowhere::Unknown(tried) => {
            log::warn!(target: "nic", "cannot open {name:?}: {tried}");
            Error::InvalidParameter
        }
        Nowhere::Shortage(what) => {
            log::error!(target: "nic", "cannot open {name:?}: {what}");
            Error::Resource
        }
    })?;
    log::info!(
        target: "nic",
        "{name} is served by {}:{} ({})", route.plugin.name, route.argument, route.reason
    );
    open_route(process, &route, registering)
}

fn open_route(
    process: &'static Process,
    route: &Route,
    registering: Registering,
) -> Result<VIP_NIC_HANDLE, Error> {
    process.agents.want()?;
    registering.finish();
    let (shared, info) = open_device(&process.settings, route)?;
    let registration = process
        .agents
        .open_nic(&route.plugin.name, &info)
        .inspect_err(|_| shared.close(&route.plugin.ops))?;
    insert(process, route.plugin, &shared, info, &registration)
}

/// The options of plug-ins, from the settings.
fn options(settings: &Settings) -> u32 {
    let mut options = 0;
    if settings.carry_unflagged_immediate() {
        options |= VIPL_OPTION_CARRY_IMMEDIATE;
    }
    if settings.check_descriptor_memory() {
        options |= VIPL_OPTION_CHECK_DESCRIPTOR;
    }
    if settings.check_receive_whole() {
        options |= VIPL_OPTION_CHECK_RECEIVE_WHOLE;
    }
    options
}

/// Calls the plug-in's `nic_open` and checks the result.
fn open_device(settings: &Settings, route: &Route) -> Result<(Arc<Shared>, vipl_nic_info), Error> {
    let argument = CString::new(route.argument.as_str()).map_err(|_| Error::InvalidParameter)?;
    let Some(nic_open) = route.plugin.ops.nic_open else {
        return Err(Error::NotSupported);
    };
    let shared = Shared::new(options(settings));
    let mut info = route.plugin.blank_info();
    // SAFETY: all three are valid for the call; the plug-in only keeps the NIC's address.
    let status = unsafe { nic_open(argument.as_ptr(), Shared::abi(&shared), &raw mut info) };
    if status != VIPL_OK {
        return Err(refused(route, status));
    }
    if let Err(what) = check_info(&info) {
        log::error!(
            target: "plugin",
            "{}: nic_open describes an impossible device: {what}; the plug-in is {}",
            route.plugin.name,
            route.plugin.path.display()
        );
        shared.close(&route.plugin.ops);
        return Err(Error::Resource);
    }
    Shared::describe(&shared, &mut info);
    Ok((shared, info))
}

/// Makes the handle of an opened device.
fn insert(
    process: &'static Process,
    plugin: &'static LoadedPlugin,
    shared: &Arc<Shared>,
    info: vipl_nic_info,
    registration: &Arc<NicRegistration>,
) -> Result<VIP_NIC_HANDLE, Error> {
    let Some(nic) = nic::insert(process, plugin, shared, info, registration) else {
        process.agents.close_nic(registration);
        shared.close(&plugin.ops);
        log::error!(target: "nic", "too many NIC handles in this process; VipCloseNic releases them");
        return Err(Error::Resource);
    };
    log::debug!(
        target: "nic",
        "NIC {:?} opened: plug-in {}, address {}, {}, messages up to {} bytes",
        nic.handle,
        plugin.name,
        hexadecimal(nic.address()),
        levels(nic.info.reliability_support),
        nic.info.transfer_max
    );
    if nic.has_failed() {
        failure::fail_all(&nic);
    }
    if let Err(error) = poller::start(&nic) {
        log::error!(target: "nic", "cannot start the thread that polls {}: {error}", plugin.name);
        close(nic.handle)?;
        return Err(Error::Resource);
    }
    Ok(nic.handle)
}

/// A NIC of a test's plug-in. No agent knows it, so VIs on it cannot be connected by one.
#[cfg(test)]
pub(crate) fn open_without_agent(plugin: &'static LoadedPlugin) -> Result<VIP_NIC_HANDLE, Error> {
    let (process, registering) = prepare();
    registering.finish();
    let route = Route {
        plugin,
        argument: String::new(),
        reason: String::new(),
    };
    let (shared, info) = open_device(&process.settings, &route)?;
    let registration = Arc::new(NicRegistration::new(&plugin.name, &info, None));
    insert(process, plugin, &shared, info, &registration)
}

/// VipCloseNic.
pub fn close(handle: VIP_NIC_HANDLE) -> Result<(), Error> {
    let nic = nic::resolve(handle)?;
    if nic.events.on_handler_thread() {
        log::warn!(
            target: "nic",
            "VipCloseNic refused: a handler of this NIC handle called it; call it on another thread, after the handler has returned"
        );
        return Err(Error::Resource);
    }
    nic::remove(&nic)?;
    connect::forget_incoming(&nic);
    nic.agents().close_nic(&nic.registration);
    nic.events.stop(|| nic.wake());
    log::debug!(target: "nic", "NIC {handle:?} closed");
    Ok(())
}

/// VipQueryNic.
pub fn query(handle: VIP_NIC_HANDLE) -> Result<VIP_NIC_ATTRIBUTES, Error> {
    Ok(nic::resolve(handle)?.attributes())
}

//! `vipinfo --why`: the checks that a person would make when something does not work or is slow.
//!
//! ```text
//!   library    library, settings, plug-ins, agent, device name, device
//!   host       limits, system calls, access to memory, processors, scheduler groups
//!   network    interface, address, firewall, RDMA devices
//!   remote     the other host: its name, its agent, the size of packets on the way
//! ```
//!
//! Each answers with [`Finding`]s. What the library and the agent say themselves is taken from the library's log.

#![forbid(unsafe_code)]

mod finding;
mod firewall;
mod host;
mod library;
mod log;
mod network;
mod page;
mod remote;

use std::process::ExitCode;

pub use finding::{Finding, Kind, Verdict};

use crate::{Result, report, sys};
use host::System;
use page::Page;

/// Checks DEVICE, the default one if it is not named, and the way to HOST, and prints what was found while it is found.
/// Nothing else of the process has used the library, or started a thread.
///
/// The exit code is 0 if there is no problem, 1 if something does not work, 3 if it works and something slows or limits it.
#[must_use]
pub fn answer(asked: &[String], json: bool) -> ExitCode {
    let device = asked.first().cloned();
    let device = device.or_else(|| std::env::var("VIPL_DEVICE").ok());
    let device = device.unwrap_or_else(|| crate::options::DEVICE.to_owned());
    let mut page = Page::new(&device, asked.get(1).map(String::as_str), json);
    match check(&device, asked.get(1).map(String::as_str), &mut page).and_then(|()| page.finish()) {
        Ok(worst) => ExitCode::from(match worst {
            Verdict::Fine | Verdict::Unknown => 0,
            Verdict::Broken => 1,
            Verdict::Slow => 3,
        }),
        Err(error) => report::failed("vipinfo", &error, json),
    }
}

fn check(device: &str, host: Option<&str>, page: &mut Page) -> Result<()> {
    let system = System::this();
    // Pinned threads and forks cost less before the library is opened.
    let of_processors = system.processors();
    let found = library::check(device, page)?;
    page.add(system.limits(found.as_ref()))?;
    page.add(system.calls())?;
    page.add(system.memory_access(sys::copy_to_parent()))?;
    page.add(of_processors)?;
    page.add(system.groups())?;
    let Some(found) = found else {
        return Ok(());
    };
    let link = network::Link::of(&found);
    page.add(network::check(&found, link.as_ref(), host))?;
    if let (Some(host), Some(nic)) = (host, &found.nic) {
        let is_ip = found.plugin == "ip";
        page.add(remote::check(nic, is_ip, host, link.as_ref(), &found.log))?;
    }
    page.add(found.log.rest())
}

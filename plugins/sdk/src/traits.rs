//! The traits of a plug-in's objects, and those of its capabilities.

use std::ffi::CStr;
use std::time::Duration;

use vipl_plugin_abi::*;
use vipl_rules::{NicHandle, Port, Status};

use crate::settings::Setting;

/// The plug-in itself.
pub trait Provider: 'static {
    /// Name; the file is `libvipl_NAME.so`.
    const NAME: &'static CStr;
    /// Version, for people.
    const VERSION: &'static CStr;
    /// Settings of the plug-in, made with the functions of [`settings`](crate::settings).
    const SETTINGS: &'static [Setting] = &[];
    /// One opening of a device.
    type Nic: Nic;

    /// Rank and argument, if this plug-in serves the device `name`; by default those that are present.
    fn claim(name: &str) -> Option<(i32, String)> {
        let own = Self::devices().iter().any(|device| device == name);
        own.then(|| (10, String::new()))
    }
    /// Devices that are present.
    fn devices() -> Vec<String>;
    /// Opens the device; fills what differs from the defaults in `info`. Its field `regions` is left alone, see
    /// [`OwnTable`].
    ///
    /// # Errors
    /// `Invalid`: the argument names no device; else why it cannot be opened.
    fn open(argument: &str, nic: NicHandle, info: &mut vipl_nic_info) -> Result<Self::Nic, Status>;
}

/// One opening of a device. Its methods may run on several threads at once.
pub trait Nic: Sync + Send + 'static {
    /// The plug-in's part of a VI.
    type Vi: Vi<Nic = Self>;

    /// Before the NIC is dropped: no VI is left.
    fn close(&mut self) {}
}

/// The plug-in's part of a VI; the host holds the VI's lock.
pub trait Vi: Send + 'static {
    /// The NIC that it belongs to.
    type Nic;

    /// A new VI, not connected.
    ///
    /// # Errors
    /// VipCreateVi fails.
    fn new(nic: &Self::Nic, port: &Port) -> Result<Self, Status>
    where
        Self: Sized;
    /// The VI is connected.
    ///
    /// # Errors
    /// The connection is not made.
    fn attach(
        &mut self,
        nic: &Self::Nic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status>;
    /// The VI is not connected any more.
    fn detach(&mut self, nic: &Self::Nic, port: &Port);
    /// The agent reports that the peer has exited or closed the connection. Deliver what arrived before. If the VI is
    /// still connected afterwards, the host fails it, except if the peer is on another host and left in good order.
    fn peer_gone(&mut self, nic: &Self::Nic, port: &Port, orderly: bool) {
        let _ = orderly;
        self.progress(nic, port);
    }
    /// The send doorbell.
    fn post_send(&mut self, nic: &Self::Nic, port: &Port);
    /// The receive doorbell.
    fn post_recv(&mut self, nic: &Self::Nic, port: &Port) {
        let _ = (nic, port);
    }
    /// Processes arrived messages, or a part of them while no thread waits for completions; `detach` processes the rest.
    fn progress(&mut self, nic: &Self::Nic, port: &Port);
    /// Whether no transfer uses a region that has left the table. `since` is 0 in the first call, later what this has
    /// left there. With no time `left` it is not asked again: a transfer that still is under way costs the connection.
    /// The default is for plug-ins whose transfers all happen within operations of this VI.
    fn quiesced(&mut self, port: &Port, since: &mut u64, left: Duration) -> bool {
        let _ = (port, since, left);
        true
    }
}

/// Capability: the NIC knows which VIs may have work. Without it the host asks every connected VI.
pub trait Ready: Nic {
    /// Writes the numbers of such VIs and forgets them; returns how many were written.
    fn ready(&self, indices: &mut [u32]) -> usize;

    /// Whether `ready` shall report the receive side of this VI.
    fn watch(&self, vi: &mut Self::Vi, on: bool);
}

/// Capability: a thread can sleep until something happens on the NIC. Without it the host sleeps in short steps.
pub trait Sleep: Nic {
    /// Announces a thread that is about to sleep.
    fn arm(&self) -> u32;

    /// Sleeps until something has happened since `arm` returned `epoch`; 0 only takes the announcement back.
    fn sleep(&self, epoch: u32, timeout_ns: u64);

    /// Ends every sleep.
    fn wake(&self);
}

/// Capability: the device has to know which memory is registered.
pub trait Regions: Nic {
    /// A region is registered, or its access changes; may block. `access` is as in [`vipl_region`].
    ///
    /// # Errors
    /// The application's call fails.
    fn region_add(&self, handle: u32, base: u64, bytes: u64, access: u64) -> Result<(), Status>;

    /// A region is not used any more; may block.
    fn region_remove(&self, handle: u32);
}

/// Capability: the table of regions lies in memory of the plug-in, for instance where peers can read it. Without it the
/// host has a table of its own.
pub trait OwnTable: Nic {
    /// The table, zeroed when the NIC is opened, with as many entries as `info.regions_max` says.
    fn table(&self) -> &[vipl_region];
}

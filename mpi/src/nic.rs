//! The NIC that this process has open: its device, and the engine behind its lock.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vipl_abi::*;
use vipl_sys::clock::Instant;

use crate::address::Address;
use crate::device::{Device, Handle};
use crate::engine::Engine;
use crate::settings::{Settings, settings};

/// An open NIC.
pub(crate) struct Nic {
    pub device: Arc<Device>,
    pub settings: &'static Settings,
    /// Random number of this process.
    pub process: u32,
    engine: Mutex<Engine>,
    opener: u32,
}

static OPEN: Mutex<Option<Arc<Nic>>> = Mutex::new(None);

fn open_nic() -> MutexGuard<'static, Option<Arc<Nic>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nic {
    /// The NIC; opens it at the first call. A child of fork opens its own.
    pub(crate) fn get() -> Result<Arc<Nic>, String> {
        let mut open = open_nic();
        let process = std::process::id();
        if let Some(nic) = open.as_ref() {
            if nic.opener == process {
                return Ok(nic.clone());
            }
            // The parent's: its handles mean nothing here, and nothing may be closed.
            std::mem::forget(open.take());
        }
        let settings = settings();
        let device = Arc::new(Device::open(settings, Some(on_error))?);
        let nic = Arc::new(Nic {
            device: device.clone(),
            settings,
            process: random(),
            engine: Mutex::new(Engine::new(device, settings, Some(on_entry))),
            opener: process,
        });
        *open = Some(nic.clone());
        Ok(nic)
    }

    /// Forgets the NIC. It is closed when the last object of it is.
    pub(crate) fn release() {
        // Closing waits for handlers, which take this lock to find the NIC.
        let nic = open_nic().take();
        if let Some(nic) = nic {
            match nic.opener == std::process::id() {
                true => drop(nic),
                false => std::mem::forget(nic),
            }
        }
    }

    /// The engine.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic under the lock has been reported; the engine's parts are changed one after the other, so the worst
        // is a connection that fails.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives what an endpoint that closes has sent the time to arrive: a program that injects cannot know when it has.
    pub(crate) fn linger(&self, is_busy: impl Fn(&mut Engine) -> bool) {
        let end = Instant::now() + self.settings.linger;
        loop {
            let mut engine = self.lock();
            engine.progress();
            if !is_busy(&mut engine) || Instant::now() >= end {
                return;
            }
            drop(engine);
            std::thread::yield_now();
        }
    }

    /// An address of this process.
    pub(crate) fn address(&self, port: u16) -> Address {
        Address::new(self.device.limits.address, self.process, port)
    }
}

/// Yields the processor for a moment; no lock is held.
#[cold]
pub(crate) fn rest() {
    let _off = vipl_sys::cancel::Off::new();
    vipl_sys::clock::sleep(REST);
}

/// Longer than a step of a handshake takes, and short for a program that waits for a connection.
const REST: Duration = Duration::from_micros(50);

/// Never 0.
fn random() -> u32 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    (hasher.finish() as u32).max(1)
}

/// The NIC with this handle, for a handler.
fn of_handle(handle: VIP_NIC_HANDLE) -> Option<Arc<Nic>> {
    let nic = open_nic().clone()?;
    (nic.device.nic == Handle::from_raw(handle)).then_some(nic)
}

/// Handler of the completion queue: makes progress for those who sleep.
unsafe extern "C" fn on_entry(
    _: VIP_PVOID,
    handle: VIP_NIC_HANDLE,
    vi: VIP_VI_HANDLE,
    receive: VIP_BOOLEAN,
) {
    if let Some(nic) = of_handle(handle) {
        nic.lock().notified(Handle::from_raw(vi), receive != 0);
    }
}

/// Handler of asynchronous errors.
unsafe extern "C" fn on_error(_: VIP_PVOID, error: *mut VIP_ERROR_DESCRIPTOR) {
    // SAFETY: the library's description, valid during the call. Its enumerations are read as what they are in C.
    let (handle, vi, code) = unsafe {
        (
            (*error).NicHandle,
            (*error).ViHandle,
            (&raw const (*error).ErrorCode).cast::<c_int>().read(),
        )
    };
    if let Some(nic) = of_handle(handle) {
        let everything = code == VIP_ERROR_CODE::VIP_ERROR_CATASTROPHIC as c_int;
        let vi = (!vi.is_null()).then_some(Handle::from_raw(vi));
        nic.lock().broken(vi, everything, code);
    }
}

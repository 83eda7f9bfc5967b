//! One call of the recorded run, made again.

use std::ffi::{CString, c_int};
use std::time::Duration;

use vipl_client::raw::Functions;
use vipl_client::raw::abi::*;
use vipl_sys::clock::{self, Instant};
use vipl_sys::crc;

use super::file::Call;
use super::process::{Nic, Process};

/// Between two polls.
const PAUSE: Duration = Duration::from_micros(20);
/// Longest part of a network address.
const PART_MAX: usize = 64;

/// Most bytes of one message of which the layer `record` writes a sum.
const DATA_MAX: usize = 16 << 20;

/// What came of a call.
pub(super) enum Outcome {
    /// It was not made: the reason.
    Left(&'static str),
    /// It returned this code; and what else is not as it was then.
    Made(c_int, Option<String>),
}

/// What calls need.
pub(super) struct Stage<'a> {
    pub(super) functions: &'a Functions,
    pub(super) device: Option<&'a str>,
    pub(super) patience: Duration,
    /// Whether messages have the bytes of then.
    pub(super) with_bytes: bool,
    /// The process and NIC at each side of a connection, by its number and the side.
    pub(super) sides: &'a (dyn Fn((u64, u64)) -> Option<(&'a Process, u64)> + Sync),
}

/// A network address with room for its parts.
#[repr(C, align(8))]
struct Address([u8; 4 + 2 * PART_MAX]);

impl Address {
    fn new(host: &[u8], discriminator: &[u8]) -> Address {
        let (host, point) = (
            &host[..host.len().min(PART_MAX)],
            &discriminator[..discriminator.len().min(PART_MAX)],
        );
        let mut bytes = [0; 4 + 2 * PART_MAX];
        bytes[..2].copy_from_slice(&(host.len() as u16).to_ne_bytes());
        bytes[2..4].copy_from_slice(&(point.len() as u16).to_ne_bytes());
        bytes[4..4 + host.len()].copy_from_slice(host);
        bytes[4 + host.len()..][..point.len()].copy_from_slice(point);
        Address(bytes)
    }

    fn net(&mut self) -> *mut VIP_NET_ADDRESS {
        self.0.as_mut_ptr().cast()
    }
}

fn null<T>() -> *mut T {
    std::ptr::null_mut()
}

unsafe extern "C" fn on_error(_: VIP_PVOID, _: *mut VIP_ERROR_DESCRIPTOR) {}
unsafe extern "C" fn on_descriptor(
    _: VIP_PVOID,
    _: VIP_NIC_HANDLE,
    _: VIP_VI_HANDLE,
    _: *mut VIP_DESCRIPTOR,
) {
}
unsafe extern "C" fn on_entry(_: VIP_PVOID, _: VIP_NIC_HANDLE, _: VIP_VI_HANDLE, _: VIP_BOOLEAN) {}

fn made(code: c_int) -> Outcome {
    Outcome::Made(code, None)
}

fn succeeded(code: c_int) -> bool {
    code == VIP_RETURN::VIP_SUCCESS as c_int
}

impl Stage<'_> {
    /// Makes a call again.
    pub(super) fn make(&self, process: &Process, call: &Call) -> Outcome {
        match call.result.as_str() {
            "VIP_INVALID_PARAMETER" => return Outcome::Left("a bad argument"),
            "VIP_TIMEOUT" => return Outcome::Left("a wait whose time was up"),
            "left" => return Outcome::Left("a thread that was cancelled"),
            _ => {}
        }
        // SAFETY: handles of now, or NULL; pointers to values of these functions, to memory that lives as long as the
        // processes do, or to no memory at all where the program of then gave a bad one: the library checks those.
        unsafe {
            self.object(process, call)
                .or_else(|| self.memory(process, call))
                .or_else(|| self.connection(process, call))
                .or_else(|| self.transfer(process, call))
        }
        .unwrap_or(Outcome::Left("a function that is not made again"))
    }

    /// Repeats a poll until it finds something.
    fn poll(&self, mut one: impl FnMut() -> c_int) -> c_int {
        let limit = Instant::now() + self.patience;
        loop {
            let code = one();
            if code != VIP_RETURN::VIP_NOT_DONE as c_int || Instant::now() >= limit {
                return code;
            }
            clock::sleep(PAUSE);
        }
    }

    fn milliseconds(&self) -> VIP_ULONG {
        self.patience.as_millis() as VIP_ULONG
    }

    /// NICs, VIs, completion queues, tags.
    ///
    /// # Safety
    /// As `make` says; also of those below.
    unsafe fn object(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let (nic_then, vi_then) = (call.number("NicHandle"), call.number("ViHandle"));
        let nic = std::ptr::with_exposed_provenance_mut(process.nic(nic_then).handle);
        let vi = process.handle(vi_then);
        let cq = process.handle(call.number("CQHandle"));
        let mut out: VIP_PVOID = null();
        // SAFETY: as the caller says.
        unsafe {
            Some(match call.name.as_str() {
                "VipOpenNic" => {
                    let recorded = call.bytes("DeviceName").unwrap_or_default();
                    let name = self
                        .device
                        .map_or(recorded, |device| device.as_bytes().to_vec());
                    let name = CString::new(name).unwrap_or_default();
                    let code = (f.VipOpenNic)(name.as_ptr(), &raw mut out);
                    if succeeded(code) {
                        process.add_nic(nic_then, nic_of(f, out));
                    }
                    made(code)
                }
                "VipCloseNic" => made((f.VipCloseNic)(nic)),
                "VipErrorCallback" => made((f.VipErrorCallback)(nic, null(), Some(on_error))),
                "VipCreatePtag" => {
                    let code = (f.VipCreatePtag)(nic, &raw mut out);
                    process.add(call.number("Ptag"), out);
                    made(code)
                }
                "VipDestroyPtag" => {
                    made((f.VipDestroyPtag)(nic, process.handle(call.number("Ptag"))))
                }
                "VipCreateVi" => {
                    let mut attributes = vi_attributes(process, call)?;
                    let send = process.handle(call.number("SendCQHandle"));
                    let receive = process.handle(call.number("RecvCQHandle"));
                    let code =
                        (f.VipCreateVi)(nic, &raw mut attributes, send, receive, &raw mut out);
                    process.add_vi(vi_then, out, nic_then);
                    made(code)
                }
                "VipDestroyVi" => made((f.VipDestroyVi)(vi)),
                "VipSetViAttributes" => {
                    let mut attributes = vi_attributes(process, call)?;
                    made((f.VipSetViAttributes?)(vi, &raw mut attributes))
                }
                "VipCreateCQ" => {
                    let entries = call.number("EntryCount") as VIP_ULONG;
                    let code = (f.VipCreateCQ)(nic, entries, &raw mut out);
                    process.add(call.number("CQHandle"), out);
                    made(code)
                }
                "VipDestroyCQ" => made((f.VipDestroyCQ)(cq)),
                "VipResizeCQ" => made((f.VipResizeCQ?)(cq, call.number("EntryCount") as VIP_ULONG)),
                "VipCQNotify" => made((f.VipCQNotify?)(cq, null(), Some(on_entry))),
                "VipSendNotify" => made((f.VipSendNotify?)(vi, null(), Some(on_descriptor))),
                "VipRecvNotify" => made((f.VipRecvNotify?)(vi, null(), Some(on_descriptor))),
                "VipQueryVi" => {
                    let (mut state, mut send, mut receive) = (0, 0, 0);
                    let mut attributes = EMPTY;
                    let code = (f.VipQueryVi)(
                        vi,
                        &raw mut state,
                        &raw mut attributes,
                        &raw mut send,
                        &raw mut receive,
                    );
                    // The state may change at any time; a program that asks for it usually waits for it.
                    made(code)
                }
                _ => return None,
            })
        }
    }

    /// Regions.
    unsafe fn memory(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let nic_then = call.number("NicHandle");
        let nic = std::ptr::with_exposed_provenance_mut(process.nic(nic_then).handle);
        let base = |name| {
            std::ptr::with_exposed_provenance_mut(process.memory.now(call.number(name)) as usize)
        };
        // SAFETY: as the caller says.
        unsafe {
            Some(match call.name.as_str() {
                "VipRegisterMem" => {
                    let mut attributes = mem_attributes(process, call);
                    let attributes = attributes.as_mut().map_or(null(), |one| &raw mut *one);
                    let (mut handle, length) = (0, call.number("Length") as VIP_ULONG);
                    let code = (f.VipRegisterMem)(
                        nic,
                        base("VirtualAddress"),
                        length,
                        attributes,
                        &raw mut handle,
                    );
                    process.add_region(nic_then, call.number("MemoryHandle"), handle);
                    made(code)
                }
                "VipDeregisterMem" => {
                    let handle = process.region(nic_then, call.number("MemoryHandle"));
                    made((f.VipDeregisterMem)(nic, base("VirtualAddress"), handle))
                }
                "VipSetMemAttributes" => {
                    let mut attributes = mem_attributes(process, call)?;
                    let handle = process.region(nic_then, call.number("MemHandle"));
                    made((f.VipSetMemAttributes?)(
                        nic,
                        base("Address"),
                        handle,
                        &raw mut attributes,
                    ))
                }
                _ => return None,
            })
        }
    }

    /// Connections. All hosts of then are the one of the device of now; discriminators are those of then.
    unsafe fn connection(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let vi_then = call.number("ViHandle");
        let vi = process.handle(vi_then);
        let request = process.handle(call.number("ConnHandle"));
        let mut attributes = EMPTY;
        let address = |nic: &Nic, name| {
            Address::new(&nic.host, &call.discriminator(name).unwrap_or_default())
        };
        // SAFETY: as the caller says.
        let code = unsafe {
            match call.name.as_str() {
                "VipConnectWait" => {
                    let nic = process.nic(call.number("NicHandle"));
                    let (mut local, mut remote) =
                        (address(&nic, "LocalAddr"), Address::new(&[], &[]));
                    let mut out = null();
                    let handle = std::ptr::with_exposed_provenance_mut(nic.handle);
                    let time = self.milliseconds();
                    let code = (f.VipConnectWait)(
                        handle,
                        local.net(),
                        time,
                        remote.net(),
                        &raw mut attributes,
                        &raw mut out,
                    );
                    process.add(call.number("ConnHandle"), out);
                    code
                }
                "VipConnectAccept" => (f.VipConnectAccept)(request, vi),
                "VipConnectReject" => (f.VipConnectReject)(request),
                "VipConnectRequest" => {
                    let (_, nic) = process.nic_of(vi_then);
                    let (mut local, mut remote) =
                        (address(&nic, "LocalAddr"), address(&nic, "RemoteAddr"));
                    let time = self.milliseconds();
                    let limit = Instant::now() + self.patience;
                    loop {
                        let code = (f.VipConnectRequest)(
                            vi,
                            local.net(),
                            remote.net(),
                            time,
                            &raw mut attributes,
                        );
                        // The server may be later than it was then.
                        let early = code == VIP_RETURN::VIP_NO_MATCH as c_int
                            && call.result != "VIP_NO_MATCH";
                        if !early || Instant::now() >= limit {
                            break code;
                        }
                        clock::sleep(PAUSE);
                    }
                }
                "VipConnectPeerRequest" => {
                    let (_, nic) = process.nic_of(vi_then);
                    let (mut local, mut remote) =
                        (address(&nic, "LocalAddr"), address(&nic, "RemoteAddr"));
                    (f.VipConnectPeerRequest)(vi, local.net(), remote.net(), self.milliseconds())
                }
                "VipConnectPeerDone" => {
                    self.poll(|| (f.VipConnectPeerDone)(vi, &raw mut attributes))
                }
                "VipConnectPeerWait" => (f.VipConnectPeerWait)(vi, &raw mut attributes),
                "VipDisconnect" => (f.VipDisconnect)(vi),
                _ => return None,
            }
        };
        if let Some(connection) = call.connection() {
            process.connected(vi_then, connection);
        }
        Some(made(code))
    }

    /// Descriptors.
    unsafe fn transfer(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        let vi = process.handle(call.number("ViHandle"));
        let cq = process.handle(call.number("CQHandle"));
        let mut found: *mut VIP_DESCRIPTOR = null();
        let (mut named, mut receives): (VIP_PVOID, VIP_BOOLEAN) = (null(), 0);
        let time = self.milliseconds();
        // SAFETY: as the caller says.
        unsafe {
            let code = match call.name.as_str() {
                "VipPostSend" => return self.post(process, call, f.VipPostSend),
                "VipPostRecv" => return self.post(process, call, f.VipPostRecv),
                // The entry may be of another VI than then; what it stands for is taken off by the calls behind it.
                "VipCQDone" => {
                    return Some(made(
                        self.poll(|| (f.VipCQDone)(cq, &raw mut named, &raw mut receives)),
                    ));
                }
                "VipCQWait" => {
                    return Some(made((f.VipCQWait)(
                        cq,
                        time,
                        &raw mut named,
                        &raw mut receives,
                    )));
                }
                "VipSendDone" => self.poll(|| (f.VipSendDone)(vi, &raw mut found)),
                "VipRecvDone" => self.poll(|| (f.VipRecvDone)(vi, &raw mut found)),
                "VipSendWait" => (f.VipSendWait)(vi, time, &raw mut found),
                "VipRecvWait" => (f.VipRecvWait)(vi, time, &raw mut found),
                _ => return None,
            };
            Some(Outcome::Made(code, self.compare(process, call, found)))
        }
    }

    /// Writes the descriptor of then, in places of now, and posts it.
    unsafe fn post(
        &self,
        process: &Process,
        call: &Call,
        post: vipl_client::raw::Post,
    ) -> Option<Outcome> {
        let at_then = call.number("DescriptorPtr");
        let (vi_then, segments) = (call.number("ViHandle"), call.segments());
        let (nic, _) = process.nic_of(vi_then);
        let control = call.number("control") as u16;
        let mut words: Vec<u32> = vec![0; 8];
        let Ok(count) = u16::try_from(segments.len()) else {
            return Some(Outcome::Left("a descriptor of too many segments"));
        };
        words[3] = u32::from(count) | u32::from(control) << 16;
        words[5] = call.number("immediate") as u32;
        words[6] = call.number("length") as u32;
        let is_rdma = control & VIP_CONTROL_OP_MASK != 0;
        let mut local = Vec::new();
        for (number, [address, handle, length]) in segments.iter().copied().enumerate() {
            let (now, handle) = if number == 0 && is_rdma {
                let connection = process.connection(vi_then);
                let peer = connection.and_then(|(id, side)| (self.sides)((id, side ^ 1)));
                match peer {
                    Some((peer, nic)) => (peer.memory.now(address), peer.region(nic, handle)),
                    None => return Some(Outcome::Left("RDMA to a process that was not recorded")),
                }
            } else {
                local.push((address, length));
                (process.memory.now(address), process.region(nic, handle))
            };
            words.extend([now as u32, (now >> 32) as u32, handle, length as u32]);
        }
        if !process.memory.has(at_then, 4 * words.len() as u64) {
            return Some(Outcome::Left("a descriptor at a bad address"));
        }
        // SAFETY: memory of this process, as was just checked; nothing else writes there while the descriptor is not posted.
        let at = unsafe {
            if let Some(data) = call.bytes("data") {
                put(process, &local, &data);
            }
            let at =
                std::ptr::with_exposed_provenance_mut::<u8>(process.memory.now(at_then) as usize);
            // As bytes: the address of then may be unaligned, which the library refuses.
            std::ptr::copy_nonoverlapping(words.as_ptr().cast::<u8>(), at, 4 * words.len());
            at
        };
        process.posted(at_then, local);
        let handle = process.region(nic, call.number("MemoryHandle"));
        // SAFETY: as the caller says.
        Some(made(unsafe {
            post(process.handle(vi_then), at.cast(), handle)
        }))
    }

    /// What is different about a descriptor that was taken off a queue.
    unsafe fn compare(
        &self,
        process: &Process,
        call: &Call,
        found: *mut VIP_DESCRIPTOR,
    ) -> Option<String> {
        let then = call.number("DescriptorPtr");
        if found.is_null() || call.text("status").is_none() {
            return None;
        }
        if process.memory.now(then) != found.expose_provenance() as u64 {
            return Some(format!("the descriptor is another one than {then:#x}"));
        }
        // SAFETY: a descriptor of this process that is not posted.
        let words = unsafe { found.cast::<[u32; 8]>().read_unaligned() };
        let (status, length) = (call.number("status") as u32, call.number("length") as u32);
        if words[7] != status {
            return Some(format!("Status was {status:#x} and is {:#x}", words[7]));
        }
        if words[6] != length {
            return Some(format!("Length was {length} and is {}", words[6]));
        }
        let immediate = call.number("immediate") as u32;
        if status & VIP_STATUS_IMMEDIATE != 0 && words[5] != immediate {
            return Some(format!(
                "ImmediateData was {immediate:#x} and is {:#x}",
                words[5]
            ));
        }
        let sum = call.text("sum").filter(|_| self.with_bytes)?;
        let message = process.message(then, (length as usize).min(DATA_MAX));
        let now = format!("{:#x}", crc::crc32c(&message));
        (now != sum).then(|| format!("the message of {length} bytes has another content"))
    }
}

const EMPTY: VIP_VI_ATTRIBUTES = VIP_VI_ATTRIBUTES {
    ReliabilityLevel: 0,
    MaxTransferSize: 0,
    QoS: std::ptr::null_mut(),
    Ptag: std::ptr::null_mut(),
    EnableRdmaWrite: 0,
    EnableRdmaRead: 0,
};

fn vi_attributes(process: &Process, call: &Call) -> Option<VIP_VI_ATTRIBUTES> {
    let [level, bytes, tag, write, read] = call.numbers("ViAttribs")?[..] else {
        return None;
    };
    Some(VIP_VI_ATTRIBUTES {
        ReliabilityLevel: level as VIP_RELIABILITY_LEVEL,
        MaxTransferSize: bytes as VIP_ULONG,
        Ptag: process.handle(tag),
        EnableRdmaWrite: write as VIP_BOOLEAN,
        EnableRdmaRead: read as VIP_BOOLEAN,
        ..EMPTY
    })
}

fn mem_attributes(process: &Process, call: &Call) -> Option<VIP_MEM_ATTRIBUTES> {
    let [tag, write, read] = call.numbers("MemAttribs")?[..] else {
        return None;
    };
    Some(VIP_MEM_ATTRIBUTES {
        Ptag: process.handle(tag),
        EnableRdmaWrite: write as VIP_BOOLEAN,
        EnableRdmaRead: read as VIP_BOOLEAN,
    })
}

/// A NIC with its host address.
///
/// # Safety
/// The handle of an open NIC.
unsafe fn nic_of(functions: &Functions, nic: VIP_NIC_HANDLE) -> Nic {
    let mut attributes = std::mem::MaybeUninit::<VIP_NIC_ATTRIBUTES>::zeroed();
    // SAFETY: room for the answer; zero is a value of each of its fields.
    let attributes = unsafe {
        (functions.VipQueryNic)(nic, attributes.as_mut_ptr());
        attributes.assume_init()
    };
    let bytes = usize::from(attributes.NicAddressLen);
    let mut host = Vec::new();
    if !attributes.LocalNicAddress.is_null() {
        let address = attributes.LocalNicAddress.cast::<u8>();
        // SAFETY: the library's array, which lives as long as the NIC.
        host.extend_from_slice(unsafe { std::slice::from_raw_parts(address, bytes) });
    }
    Nic {
        handle: nic.expose_provenance(),
        host,
    }
}

/// Puts a message into the segments of then.
///
/// # Safety
/// No other thread uses that memory.
unsafe fn put(process: &Process, segments: &[(u64, u64)], data: &[u8]) {
    let mut rest = data;
    for (address, length) in segments {
        let take = rest.len().min(*length as usize);
        if process.memory.has(*address, take as u64) {
            let to =
                std::ptr::with_exposed_provenance_mut::<u8>(process.memory.now(*address) as usize);
            // SAFETY: memory of this process, as was just checked.
            unsafe { std::ptr::copy_nonoverlapping(rest.as_ptr(), to, take) };
        }
        rest = &rest[take..];
    }
}

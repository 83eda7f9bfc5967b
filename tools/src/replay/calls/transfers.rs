//! Descriptors: posts, and what takes them off the queues.

use vipl_client::raw::abi::*;
use vipl_client::raw::{Done, Post, Wait};
use vipl_rules::words;
use vipl_sys::crc;

use super::super::file::Call;
use super::super::process::Process;
use super::given::{bad, null, output};
use super::{Outcome, Stage, Taken, made};

/// Most bytes of one message of which the layer `record` writes a sum.
const DATA_MAX: usize = 16 << 20;

impl Stage<'_> {
    /// # Safety
    /// As `make` says.
    pub(super) unsafe fn transfer(&self, process: &Process, call: &Call) -> Option<Outcome> {
        let f = self.functions;
        // SAFETY: as the caller says.
        unsafe {
            match call.name.as_str() {
                "VipPostSend" => Some(self.post(process, call, f.VipPostSend)),
                "VipPostRecv" => Some(self.post(process, call, f.VipPostRecv)),
                "VipSendDone" => Some(self.done(process, call, f.VipSendDone)),
                "VipRecvDone" => Some(self.done(process, call, f.VipRecvDone)),
                "VipSendWait" => Some(self.wait(process, call, f.VipSendWait)),
                "VipRecvWait" => Some(self.wait(process, call, f.VipRecvWait)),
                "VipCQDone" | "VipCQWait" => Some(self.entry(process, call)),
                _ => None,
            }
        }
    }

    /// An entry of a completion queue. It may be of another VI than then; what it stands for is taken off by the calls behind it.
    unsafe fn entry(&self, process: &Process, call: &Call) -> Outcome {
        let f = self.functions;
        let cq = process.handle(call.number("CQHandle"));
        let mut receives: VIP_BOOLEAN = 0;
        let receives = output(call, "RecvQueue", &raw mut receives);
        let one = |time, vi| {
            let vi = output(call, "ViHandle", vi);
            // SAFETY: as the caller says.
            unsafe {
                match call.name.as_str() {
                    "VipCQWait" => (f.VipCQWait)(cq, time, vi, receives),
                    _ => self.poll(|| (f.VipCQDone)(cq, vi, receives)),
                }
            }
        };
        match self.take(process, call, one) {
            Taken::Now(code, _) => made(code),
            Taken::Early => Outcome::Early,
        }
    }

    unsafe fn done(&self, process: &Process, call: &Call, done: Done) -> Outcome {
        let vi = process.handle(call.number("ViHandle"));
        let one = |_, out: *mut VIP_PVOID| {
            let out = output(call, "DescriptorPtr", out).cast();
            // SAFETY: as the caller says.
            self.poll(|| unsafe { done(vi, out) })
        };
        self.completion(process, call, one)
    }

    unsafe fn wait(&self, process: &Process, call: &Call, wait: Wait) -> Outcome {
        let vi = process.handle(call.number("ViHandle"));
        let one = |time, out: *mut VIP_PVOID| {
            let out = output(call, "DescriptorPtr", out).cast();
            // SAFETY: as the caller says.
            unsafe { wait(vi, time, out) }
        };
        self.completion(process, call, one)
    }

    fn completion(
        &self,
        process: &Process,
        call: &Call,
        one: impl FnOnce(VIP_ULONG, *mut VIP_PVOID) -> i32,
    ) -> Outcome {
        match self.take(process, call, one) {
            Taken::Now(code, found) => Outcome::Made(code, self.compare(process, call, found)),
            Taken::Early => Outcome::Early,
        }
    }

    /// Writes the descriptor of then, in places of now, and posts it.
    unsafe fn post(&self, process: &Process, call: &Call, post: Post) -> Outcome {
        let at_then = call.number("DescriptorPtr");
        let (vi_then, segments) = (call.number("ViHandle"), call.segments());
        let (nic, _) = process.nic_of(vi_then);
        let (vi, handle) = (
            process.handle(vi_then),
            process.region(nic, call.number("MemoryHandle")),
        );
        let post = |at: *mut VIP_DESCRIPTOR| {
            // SAFETY: as the caller says.
            made(unsafe { post(vi, at, handle) })
        };
        if call.text("control").is_none() {
            // The program gave NULL, an address that is not aligned, or one at which nothing can be read.
            let skew = at_then as usize % VIP_DESCRIPTOR_ALIGNMENT;
            return post(match at_then {
                0 => null(),
                _ => bad::<VIP_DESCRIPTOR>().wrapping_byte_add(skew),
            });
        }
        let control = call.number("control") as u16;
        let count = call
            .text("count")
            .map_or(segments.len() as u64, |_| call.number("count"));
        let mut words: Vec<u32> = vec![0; 8];
        words[3] = u32::from(count as u16) | u32::from(control) << 16;
        words[5] = call.number("immediate") as u32;
        words[6] = call.number("length") as u32;
        let is_rdma = control & VIP_CONTROL_OP_MASK != 0;
        let mut local = Vec::new();
        for (number, [address, handle, length]) in segments.iter().copied().enumerate() {
            let (now, handle) = if number == 0 && is_rdma {
                let connection = process.connection(vi_then);
                let peer = connection.map(|(id, side)| (self.sides)((id, side ^ 1)));
                match peer {
                    Some(Some((peer, nic))) => (peer.memory.now(address), peer.region(nic, handle)),
                    Some(None) => {
                        return Outcome::Left("RDMA to memory of a process that was not recorded");
                    }
                    // It was not connected: nothing is transferred.
                    None => (0, handle as VIP_MEM_HANDLE),
                }
            } else {
                local.push((address, length));
                (process.memory.now(address), process.region(nic, handle))
            };
            words.extend([now as u32, (now >> 32) as u32, handle, length as u32]);
        }
        if let Some(data) = call.bytes("data") {
            put(process, &local, &data);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        if !process.memory.write(at_then, &bytes) {
            return Outcome::Left("a descriptor in memory that the replay does not have");
        }
        process.posted(at_then, local);
        post(std::ptr::with_exposed_provenance_mut(
            process.memory.now(at_then) as usize,
        ))
    }

    /// What is different about a descriptor that was taken off a queue.
    fn compare(&self, process: &Process, call: &Call, found: VIP_PVOID) -> Option<String> {
        let then = call.number("DescriptorPtr");
        if found.is_null() || call.text("status").is_none() {
            return None;
        }
        if process.memory.now(then) != found.expose_provenance() as u64 {
            return Some(format!("the descriptor is another one than {then:#x}"));
        }
        let mut bytes = Vec::new();
        if !process.memory.read(then, 32, &mut bytes) {
            return Some(format!("the descriptor at {then:#x} is in no memory"));
        }
        let word = |place: usize| {
            bytes[4 * place..]
                .first_chunk()
                .map_or(0, |word| u32::from_ne_bytes(*word))
        };
        let (status, length) = (call.number("status") as u32, call.number("length") as u32);
        if word(7) != status {
            let [then, now] = [status, word(7)].map(words::status);
            return Some(format!(
                "Status was {status:#x} ({then}) and is {:#x} ({now})",
                word(7)
            ));
        }
        if word(6) != length {
            return Some(format!("Length was {length} and is {}", word(6)));
        }
        let immediate = call.number("immediate") as u32;
        if status & VIP_STATUS_IMMEDIATE != 0 && word(5) != immediate {
            return Some(format!(
                "ImmediateData was {immediate:#x} and is {:#x}",
                word(5)
            ));
        }
        let sum = call.text("sum").filter(|_| self.with_bytes)?;
        let message = process.message(then, (length as usize).min(DATA_MAX));
        let now = format!("{:#x}", crc::crc32c(&message));
        (now != sum).then(|| format!("the message of {length} bytes has another content"))
    }
}

/// Puts a message into the segments of then.
fn put(process: &Process, segments: &[(u64, u64)], data: &[u8]) {
    let mut rest = data;
    for (address, length) in segments {
        let (piece, behind) = rest.split_at(rest.len().min(*length as usize));
        process.memory.write(*address, piece);
        rest = behind;
    }
}

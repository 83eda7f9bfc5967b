//! One descriptor, made from bytes, given to the walker and to an oracle. The oracle is the text of the
//! specification (§5.7: format, then length, then protection) over plain values.

use vipl_abi::*;
use vipl_guard::Segment;
use vipl_plugin_abi::*;
use vipl_rules::{Entry, Port, posted};

/// Descriptors and segments that the walker may see; behind them the memory ends.
const PAGE: usize = 4096;
const REGIONS: usize = 8;

/// What a verdict says: the status of a fault, or operation and lengths.
#[derive(Debug, PartialEq)]
enum Verdict {
    Fault(u32),
    Good(u32, u32, bool, Vec<u64>),
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        (0..8).fold(0, |word, _| word << 8 | u64::from(self.byte()))
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}

/// A region as the oracle sees it.
#[derive(Clone, Copy, Default)]
struct Known {
    handle: u32,
    base: u64,
    end: u64,
    tag: u32,
}

/// The rules of one VI and its NIC.
struct Rules {
    regions: [Known; REGIONS],
    tag: u32,
    reliability: u16,
    read_levels: u16,
    segments_max: u32,
    transfer_max: u64,
    /// Receive segments are checked whole.
    whole: bool,
}

impl Rules {
    fn permits(&self, segment: &Segment) -> bool {
        if segment.length == 0 {
            return true;
        }
        let (first, last) = (u128::from(segment.address), u128::from(segment.length) - 1);
        self.regions.iter().any(|region| {
            let tags =
                self.tag == region.tag || self.tag == VIPL_PTAG_ANY || region.tag == VIPL_PTAG_NONE;
            segment.handle != 0
                && segment.handle == region.handle
                && tags
                && first >= u128::from(region.base)
                && first + last < u128::from(region.end)
        })
    }

    /// What should come out. `segments` holds those that lie in mapped memory.
    fn outgoing(&self, control: u16, count: u16, length: u32, segments: &[Segment]) -> Verdict {
        let opcode = match control & 3 {
            0 => VIP_STATUS_OP_SEND,
            1 => VIP_STATUS_OP_RDMA_WRITE,
            2 => VIP_STATUS_OP_RDMA_READ,
            _ => return Verdict::Fault(VIP_STATUS_FORMAT_ERROR),
        };
        let (rdma, flagged) = (control & 3 != 0, control & 4 != 0);
        let reads = self.reliability & self.read_levels != 0;
        let bad = control & 0xFFF0 != 0
            || u32::from(count) > self.segments_max
            || rdma && count == 0
            || control & 3 == 2 && (flagged || !reads);
        if bad {
            return Verdict::Fault(VIP_STATUS_FORMAT_ERROR | opcode);
        }
        if usize::from(count) > segments.len() {
            return Verdict::Fault(VIP_STATUS_PROTECTION_ERROR | opcode);
        }
        let data = &segments[usize::from(rdma)..usize::from(count)];
        let total: u64 = data.iter().map(|segment| u64::from(segment.length)).sum();
        if total != u64::from(length) || total > self.transfer_max {
            return Verdict::Fault(VIP_STATUS_LENGTH_ERROR | opcode);
        }
        if !data.iter().all(|segment| self.permits(segment)) {
            return Verdict::Fault(VIP_STATUS_PROTECTION_ERROR | opcode);
        }
        let addresses = data.iter().map(|segment| segment.address).collect();
        Verdict::Good(opcode, length, flagged, addresses)
    }

    /// `message`: the length of the message that wants it; `None` if its data lies elsewhere.
    fn incoming(
        &self,
        control: u16,
        count: u16,
        message: Option<u32>,
        segments: &[Segment],
    ) -> Verdict {
        if control & 0xFFF3 != 0 || u32::from(count) > self.segments_max {
            return Verdict::Fault(VIP_STATUS_FORMAT_ERROR);
        }
        let known = &segments[..usize::from(count).min(segments.len())];
        let complete = known.len() == usize::from(count);
        if let Some(message) = message {
            let mut begins = 0;
            let permitted = known.iter().all(|segment| {
                let left = u64::from(message).saturating_sub(begins);
                begins += u64::from(segment.length);
                // What the message puts here; where segments are checked whole, all that it could.
                let length = if self.whole || left > u64::from(segment.length) {
                    segment.length
                } else {
                    left as u32
                };
                self.permits(&Segment { length, ..*segment })
            });
            if !complete || !permitted {
                return Verdict::Fault(VIP_STATUS_PROTECTION_ERROR);
            }
        }
        let addresses = known.iter().map(|segment| segment.address).collect();
        Verdict::Good(VIP_STATUS_OP_RECEIVE, 0, false, addresses)
    }
}

/// Two pages, of which the second cannot be accessed.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Pages {
        // SAFETY: a mapping of our own.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(
                std::ptr::null_mut(),
                2 * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(base, libc::MAP_FAILED);
            let second = base.cast::<u8>().add(PAGE);
            assert_eq!(libc::mprotect(second.cast(), PAGE, libc::PROT_NONE), 0);
            Pages(base.cast())
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.0.cast(), 2 * PAGE) };
    }
}

/// Gives one descriptor to both and compares; panics where they differ.
pub(crate) fn compare(input: &[u8]) {
    vipl_guard::install();
    let mut input = Bytes(input);
    let mut rules = Rules {
        regions: [Known::default(); REGIONS],
        tag: input.one_of(&[VIPL_PTAG_ANY, 1, 2, 3]),
        reliability: input.one_of(&[1, 2, 4]),
        read_levels: input.one_of(&[0, 2, 4, 6]),
        segments_max: u32::from(input.one_of(&[0u16, 1, 3, 16, 252, 252])),
        transfer_max: input.one_of(&[0, 40, 32_768, 65_536, 1 << 30]),
        whole: input.byte() & 1 == 1,
    };
    let lengths = [1, input.byte().into(), input.word() as u32];
    // Regions share few addresses and tags, so that ranges often nearly fit.
    const PLACES: [u64; 8] = [
        0,
        0x1000,
        0x1001,
        0x2000,
        0xFFFF_0000,
        0x1_0000_0000,
        u64::MAX - 64,
        u64::MAX,
    ];
    for (index, region) in rules.regions.iter_mut().enumerate() {
        let base = input.one_of(&PLACES);
        *region = Known {
            handle: if input.byte() & 3 == 0 {
                0
            } else {
                8 * (1 + u32::from(input.byte() & 1)) + index as u32
            },
            base,
            end: base.saturating_add(u64::from(input.one_of(&[
                0u32,
                1,
                64,
                4096,
                65_536,
                u32::MAX,
            ]))),
            tag: input.one_of(&[1, 2, VIPL_PTAG_NONE]),
        };
    }
    let control = u16::from(input.byte()) | if input.byte() < 16 { 0x0100 } else { 0 };
    let control = if input.byte() < 128 {
        control & 7
    } else {
        control
    };
    let count = match input.byte() {
        few @ 0..=223 => u16::from(few % 5),
        _ => u16::from(input.byte()) * u16::from(1 + (input.byte() & 1)),
    };
    // Where the descriptor lies: sometimes the memory ends in the middle of its segments.
    let mapped = if input.byte() < 32 {
        usize::from(input.byte() % 5)
    } else {
        usize::from(count) + 2
    };
    let mapped = mapped.clamp(2, (PAGE - 64) / 16);
    let start = (PAGE - 32 - 16 * mapped) & !63;
    let mapped = (PAGE - start - 32) / 16;
    let mut segments = Vec::new();
    for _ in 0..usize::from(count).min(mapped) {
        let region = rules.regions[usize::from(input.byte()) % REGIONS];
        let wild = input.byte();
        segments.push(Segment {
            address: region
                .base
                .wrapping_add(u64::from(input.one_of(&[0u8, 0, 1, 63, 255]))),
            handle: if wild < 16 {
                input.word() as u32
            } else {
                region.handle
            },
            length: if wild & 7 == 7 {
                input.word() as u32
            } else {
                u32::from(input.byte())
            },
        });
    }
    let known = segments.clone();
    let rdma = usize::from(control & 3 != 0).min(known.len());
    let sum: u64 = known[rdma..]
        .iter()
        .map(|segment| u64::from(segment.length))
        .sum();
    let length = if input.byte() < 32 {
        input.word() as u32
    } else {
        sum as u32
    };

    let pages = Pages::new();
    let mut image = vec![0u8; 32];
    image[12..14].copy_from_slice(&count.to_ne_bytes());
    image[14..16].copy_from_slice(&control.to_ne_bytes());
    image[24..28].copy_from_slice(&length.to_ne_bytes());
    for segment in &segments {
        image.extend(segment.address.to_ne_bytes());
        image.extend(segment.handle.to_ne_bytes());
        image.extend(segment.length.to_ne_bytes());
    }
    // SAFETY: the image ends before the second page; a segment less than the memory has room for.
    let at = unsafe {
        let at = pages.0.add(start);
        std::ptr::copy_nonoverlapping(image.as_ptr(), at, image.len());
        at
    };
    // Segments that the program did not write, and that are mapped, are zeroes.
    let mut all = known;
    all.resize(mapped, Segment::default());
    with_port(&rules, |port| {
        // SAFETY: as a program posts it; it is completed by none.
        let entry = unsafe { Entry::new(at.cast(), 0, 0) };
        let found = match posted::outgoing(port, &entry, rules.read_levels) {
            Err(fault) => Verdict::Fault(fault.status),
            Ok(good) => {
                let list = good.segments.to_vec().expect("checked before");
                let addresses = list.iter().map(|segment| segment.address).collect();
                Verdict::Good(
                    good.operation.opcode(),
                    good.length,
                    good.flagged,
                    addresses,
                )
            }
        };
        assert_eq!(
            found,
            rules.outgoing(control, count, length, &all),
            "{count} segments, control {control:#x}"
        );
        let sum = sum.min(u32::MAX.into()) as u32;
        let lengths = [0, sum, sum.wrapping_add(1), u32::MAX]
            .into_iter()
            .chain(lengths);
        for message in lengths.map(Some).chain([None]) {
            let found = match posted::incoming(port, &entry, message) {
                Err(fault) => Verdict::Fault(fault.status),
                Ok(list) => {
                    let known = (0..list.len()).map_while(|number| list.get(number).ok());
                    Verdict::Good(
                        VIP_STATUS_OP_RECEIVE,
                        0,
                        false,
                        known.map(|s| s.address).collect(),
                    )
                }
            };
            assert_eq!(
                found,
                rules.incoming(control, count, message, &all),
                "received, message {message:?}, whole {}",
                rules.whole
            );
        }
    });
}

/// A VI that follows the rules, for the time of a call.
fn with_port(rules: &Rules, body: impl FnOnce(&Port)) {
    let regions = rules.regions.map(|region| vipl_region {
        base: region.base.into(),
        end: region.end.into(),
        access: (u64::from(region.tag) << 32).into(),
        handle: region.handle.into(),
        reserved: 0,
    });
    // SAFETY: plain data; null pointers where the walker does not read.
    let (mut nic, mut vi): (vipl_nic, vipl_vi) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    nic.regions = regions.as_ptr();
    nic.region_count = REGIONS as u32;
    nic.segments_max = rules.segments_max;
    if rules.whole {
        nic.options = VIPL_OPTION_CHECK_RECEIVE_WHOLE;
    }
    vi.nic = &raw const nic;
    vi.ptag = rules.tag;
    vi.reliability = rules.reliability;
    vi.max_transfer_size = rules.transfer_max;
    // SAFETY: used within this call only.
    body(unsafe { Port::new(&raw mut vi) });
}

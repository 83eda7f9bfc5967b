//! A file of pages as values.
//!
//! The file is bad input: its process may have been killed within any store, and another process of that user may have written
//! anything. Every offset is a constant, every count is bounded, text is cut at its first zero, and `pread` of a file that was cut
//! short is an error and no signal, which a mapping would give.

use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;

use crate::layout::{self, COUNTERS, CQS, EVENTS, LATENCIES, LAYOUT, MAGIC, NICS, Ring, VIS};
use crate::record::Happened;

/// Where pages are read from.
pub trait Source {
    /// Reads all of the buffer from this place on.
    ///
    /// # Errors
    /// There is not so much, or the kernel's.
    fn read(&self, buffer: &mut [u8], place: usize) -> io::Result<()>;
}

impl Source for File {
    fn read(&self, buffer: &mut [u8], place: usize) -> io::Result<()> {
        self.read_exact_at(buffer, place as u64)
    }
}

impl Source for [u8] {
    fn read(&self, buffer: &mut [u8], place: usize) -> io::Result<()> {
        let end = place.checked_add(buffer.len());
        let part = end.and_then(|end| self.get(place..end));
        let part = part.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        buffer.copy_from_slice(part);
        Ok(())
    }
}

/// Why a file cannot be read.
#[derive(Debug)]
pub enum Unreadable {
    /// The kernel says so.
    Io(io::Error),
    /// It has no pages, or its process has just made it.
    NotPages,
    /// It is of another version.
    Layout(u64),
}

impl std::fmt::Display for Unreadable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreadable::Io(error) => write!(f, "{error}"),
            Unreadable::NotPages => f.write_str("it holds no pages of a process"),
            Unreadable::Layout(found) => {
                write!(
                    f,
                    "its process has another version of VIPL: layout {found}, where this program reads {LAYOUT}"
                )
            }
        }
    }
}

impl std::error::Error for Unreadable {}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Self {
        Unreadable::Io(error)
    }
}

/// A record's bytes.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn word(&self, at: usize) -> u64 {
        let bytes = self
            .0
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        u64::from_ne_bytes(bytes.unwrap_or_default())
    }

    fn bytes(&self, at: usize, length: usize) -> &[u8] {
        self.0.get(at..at + length).unwrap_or_default()
    }

    fn text(&self, at: usize, room: usize) -> String {
        let bytes = self.bytes(at, room);
        let end = bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }
}

/// Reads a record whose sequence word is at `sequence`; a few times, if it changes meanwhile.
fn settled(
    source: &(impl Source + ?Sized),
    buffer: &mut [u8],
    place: usize,
    sequence: usize,
) -> io::Result<()> {
    const TRIES: u32 = 4;
    for _ in 0..TRIES {
        source.read(buffer, place)?;
        let before = Record(buffer).word(sequence);
        let mut after = [0; 8];
        source.read(&mut after, place + sequence)?;
        if before.is_multiple_of(2) && before == u64::from_ne_bytes(after) {
            break;
        }
    }
    // A process that was killed within a change leaves it like this: what is there is shown.
    Ok(())
}

/// The process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// See [`layout::Process`], for all of them.
    pub pid: u64,
    #[expect(missing_docs)]
    pub pid_namespace: u64,
    #[expect(missing_docs)]
    pub start_ticks: u64,
    #[expect(missing_docs)]
    pub user: u64,
    #[expect(missing_docs)]
    pub opened: u64,
    #[expect(missing_docs)]
    pub opened_1970: u64,
    #[expect(missing_docs)]
    pub clock: u64,
    #[expect(missing_docs)]
    pub ended: u64,
    #[expect(missing_docs)]
    pub vis_left_out: u64,
    #[expect(missing_docs)]
    pub pages_left_out: u64,
    #[expect(missing_docs)]
    pub version: String,
    #[expect(missing_docs)]
    pub program: String,
    /// Whether it was started with the setting `flight`.
    pub has_flights: bool,
}

/// A NIC handle, see [`layout::Nic`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Nic {
    pub handle: u64,
    pub plugin: String,
    pub device: String,
    pub address: Vec<u8>,
    pub address_form: u64,
    pub transfer_max: u64,
    pub vis_max: u64,
    pub regions: u64,
    pub region_bytes: u64,
    pub tags: u64,
    pub errors: u64,
}

/// A CQ, see [`layout::Cq`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Cq {
    pub handle: u64,
    pub nic: u64,
    pub capacity: u64,
    pub added: u64,
    pub taken: u64,
    pub dropped: u64,
    pub overflows: u64,
    pub attached: u64,
}

impl Cq {
    /// Entries in it.
    pub fn depth(&self) -> u64 {
        let left = self
            .added
            .wrapping_sub(self.taken)
            .wrapping_sub(self.dropped);
        // The words were not read at one instant.
        if left > u64::MAX / 2 { 0 } else { left }
    }
}

/// What was counted on a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Counted {
    pub posted: u64,
    pub taken: u64,
    pub completed: u64,
    pub failed: u64,
}

impl Counted {
    /// Descriptors on it: posted and not taken off.
    pub fn depth(&self) -> u64 {
        let left = self.posted.wrapping_sub(self.taken);
        // The words were not read at one instant.
        if left > u64::MAX / 2 { 0 } else { left }
    }
}

/// What is known from samples, see [`layout::Sampled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Bytes of the send queue, and of the receive queue.
    pub bytes: [u64; 2],
    /// Sum of the sampled times, in nanoseconds.
    pub latency_sum: u64,
    /// Sends of each [`layout::latency_range`].
    pub latency: [u64; LATENCIES],
    /// The time of the latest sample; 0: unknown.
    pub latest: u64,
}

impl Default for Sampled {
    fn default() -> Sampled {
        Sampled {
            bytes: [0; 2],
            latency_sum: 0,
            latency: [0; LATENCIES],
            latest: 0,
        }
    }
}

impl Sampled {
    /// Times that were sampled.
    pub fn count(&self) -> u64 {
        self.latency.iter().copied().fold(0, u64::wrapping_add)
    }

    /// What was sampled since an earlier look at the same VI.
    pub fn since(&self, earlier: &Sampled) -> Sampled {
        // The words were not read at one instant.
        let more = |now: u64, then: u64| now.saturating_sub(then);
        Sampled {
            bytes: [0, 1].map(|queue| more(self.bytes[queue], earlier.bytes[queue])),
            latency_sum: more(self.latency_sum, earlier.latency_sum),
            latency: std::array::from_fn(|range| more(self.latency[range], earlier.latency[range])),
            latest: self.latest,
        }
    }

    /// Adds what was sampled of another VI.
    pub fn add(&mut self, other: &Sampled) {
        let sums = self.bytes.iter_mut().chain(&mut self.latency);
        for (sum, more) in sums.zip(other.bytes.iter().chain(&other.latency)) {
            *sum = sum.wrapping_add(*more);
        }
        self.latency_sum = self.latency_sum.wrapping_add(other.latency_sum);
        self.latest = self.latest.max(other.latest);
    }

    /// The time, in nanoseconds, within which this share of the sends completed; in its range as if they were spread evenly.
    /// `None`: there is no sample.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count: f64 = self.latency.iter().map(|count| *count as f64).sum();
        let wanted = count * share;
        let mut below = 0.0;
        for (range, here) in self.latency.iter().enumerate() {
            let here = *here as f64;
            if here > 0.0 && below + here >= wanted {
                let (from, to) = (layout::latency_from(range), layout::latency_from(range + 1));
                // What the last range has took at least so long.
                let width = if range + 1 < LATENCIES { to - from } else { 0 };
                return Some(from + (width as f64 * (wanted - below).max(0.0) / here) as u64);
            }
            below += here;
        }
        None
    }
}

/// An event, see [`layout::Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Event {
    pub time: u64,
    pub happened: Happened,
}

/// A descriptor in a recorder, see [`layout::Flight`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// As the queue counts, from 1.
    pub number: u64,
    /// Its address.
    pub descriptor: u64,
    /// Memory handle given at the post.
    pub memory: u32,
    /// 0 until it is complete.
    pub status: u32,
    /// Whether the program has taken it off.
    pub is_taken: bool,
}

/// A VI, see [`layout::Vi`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs)]
pub struct Vi {
    pub slot: usize,
    pub handle: u64,
    pub nic: u64,
    pub send_cq: u64,
    pub recv_cq: u64,
    pub number: u64,
    pub state: u64,
    pub state_since: u64,
    pub level: u64,
    pub transfer_max: u64,
    pub tag: u64,
    pub rdma: u64,
    pub connections: u64,
    pub peer: u64,
    pub peer_pid: u64,
    pub peer_vi: u64,
    pub peer_address: Vec<u8>,
    pub local_point: Vec<u8>,
    pub remote_point: Vec<u8>,
    pub send: Counted,
    pub recv: Counted,
    pub errors: u64,
    /// `None`: nothing has been sampled.
    pub sampled: Option<Box<Sampled>>,
    pub event_count: u64,
    /// The latest, the oldest first; [`Vi::read`] has them.
    pub events: Vec<Event>,
    /// The latest descriptors of the send queue and of the receive queue, the oldest first; [`Vi::read`] has them if the process
    /// keeps them.
    pub descriptors: [Vec<Posted>; 2],
}

/// All of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The process.
    pub process: Process,
    /// Its NIC handles.
    pub nics: Vec<Nic>,
    /// Its CQs.
    pub cqs: Vec<Cq>,
    /// Its VIs.
    pub vis: Vec<Vi>,
    /// Its counters: name and value.
    pub counters: Vec<(String, u64)>,
}

/// Reads what a file says of its process.
///
/// # Errors
/// It is no file of pages.
pub fn head(source: &(impl Source + ?Sized)) -> Result<Process, Unreadable> {
    let mut page = vec![0; size_of::<layout::Process>()];
    checked(source, &mut page).map(|head| process(&head))
}

/// Reads the first page, and checks what it is.
fn checked<'a>(
    source: &(impl Source + ?Sized),
    page: &'a mut [u8],
) -> Result<Record<'a>, Unreadable> {
    source.read(page, 0)?;
    let head = Record(page);
    if head.word(offset_of!(layout::Process, magic)) != MAGIC {
        return Err(Unreadable::NotPages);
    }
    match head.word(offset_of!(layout::Process, layout)) {
        LAYOUT => Ok(head),
        other => Err(Unreadable::Layout(other)),
    }
}

impl Snapshot {
    /// Reads a file, but for events and descriptors, which are most of it: [`Vi::read`].
    ///
    /// # Errors
    /// It is no file of pages, or too short for what it says.
    pub fn read(source: &(impl Source + ?Sized)) -> Result<Snapshot, Unreadable> {
        let mut page = vec![0; size_of::<layout::Process>()];
        let head = checked(source, &mut page)?;
        let bound = |at, most: usize| (head.word(at).min(most as u64)) as usize;
        Ok(Snapshot {
            process: process(&head),
            nics: nics(source, bound(offset_of!(layout::Process, nic_bound), NICS))?,
            cqs: cqs(source, bound(offset_of!(layout::Process, cq_bound), CQS))?,
            vis: vis(source, bound(offset_of!(layout::Process, vi_bound), VIS))?,
            counters: counters(
                source,
                bound(offset_of!(layout::Process, counter_bound), COUNTERS),
            )?,
        })
    }
}

fn process(head: &Record<'_>) -> Process {
    Process {
        pid: head.word(offset_of!(layout::Process, pid)),
        pid_namespace: head.word(offset_of!(layout::Process, pid_namespace)),
        start_ticks: head.word(offset_of!(layout::Process, start_ticks)),
        user: head.word(offset_of!(layout::Process, user)),
        opened: head.word(offset_of!(layout::Process, opened)),
        opened_1970: head.word(offset_of!(layout::Process, opened_1970)),
        clock: head.word(offset_of!(layout::Process, clock)),
        ended: head.word(offset_of!(layout::Process, ended)),
        vis_left_out: head.word(offset_of!(layout::Process, vis_left_out)),
        pages_left_out: head.word(offset_of!(layout::Process, pages_left_out)),
        version: head.text(offset_of!(layout::Process, version), 32),
        program: head.text(offset_of!(layout::Process, program), 512),
        has_flights: head.word(offset_of!(layout::Process, bytes)) > layout::BYTES as u64,
    }
}

fn nics(source: &(impl Source + ?Sized), bound: usize) -> io::Result<Vec<Nic>> {
    let mut found = Vec::new();
    let mut buffer = [0; size_of::<layout::Nic>()];
    for slot in 0..bound {
        let place = layout::NICS_AT + slot * buffer.len();
        settled(
            source,
            &mut buffer,
            place,
            offset_of!(layout::Nic, sequence),
        )?;
        let nic = Record(&buffer);
        let handle = nic.word(offset_of!(layout::Nic, handle));
        if handle == 0 {
            continue;
        }
        let address = nic.word(offset_of!(layout::Nic, address_bytes)).min(32) as usize;
        found.push(Nic {
            handle,
            plugin: nic.text(offset_of!(layout::Nic, plugin), 24),
            device: nic.text(offset_of!(layout::Nic, device), 64),
            address: nic
                .bytes(offset_of!(layout::Nic, address), address)
                .to_vec(),
            address_form: nic.word(offset_of!(layout::Nic, address_form)),
            transfer_max: nic.word(offset_of!(layout::Nic, transfer_max)),
            vis_max: nic.word(offset_of!(layout::Nic, vis_max)),
            regions: nic.word(offset_of!(layout::Nic, regions)),
            region_bytes: nic.word(offset_of!(layout::Nic, region_bytes)),
            tags: nic.word(offset_of!(layout::Nic, tags)),
            errors: nic.word(offset_of!(layout::Nic, errors)),
        });
    }
    Ok(found)
}

fn cqs(source: &(impl Source + ?Sized), bound: usize) -> io::Result<Vec<Cq>> {
    let mut buffer = vec![0; bound * size_of::<layout::Cq>()];
    source.read(&mut buffer, layout::CQS_AT)?;
    let cqs = buffer.chunks_exact(size_of::<layout::Cq>()).map(Record);
    let cqs = cqs.map(|cq| Cq {
        handle: cq.word(offset_of!(layout::Cq, handle)),
        nic: cq.word(offset_of!(layout::Cq, nic)),
        capacity: cq.word(offset_of!(layout::Cq, capacity)),
        added: cq.word(offset_of!(layout::Cq, added)),
        taken: cq.word(offset_of!(layout::Cq, taken)),
        dropped: cq.word(offset_of!(layout::Cq, dropped)),
        overflows: cq.word(offset_of!(layout::Cq, overflows)),
        attached: cq.word(offset_of!(layout::Cq, attached)),
    });
    Ok(cqs.filter(|cq| cq.handle != 0).collect())
}

fn counters(source: &(impl Source + ?Sized), bound: usize) -> io::Result<Vec<(String, u64)>> {
    let mut buffer = vec![0; bound * size_of::<layout::Counter>()];
    source.read(&mut buffer, layout::COUNTERS_AT)?;
    let counters = buffer
        .chunks_exact(size_of::<layout::Counter>())
        .map(Record);
    let counters = counters.map(|counter| {
        let value = counter.word(offset_of!(layout::Counter, value));
        (counter.text(offset_of!(layout::Counter, name), 56), value)
    });
    Ok(counters.filter(|(name, _)| !name.is_empty()).collect())
}

fn vis(source: &(impl Source + ?Sized), bound: usize) -> io::Result<Vec<Vi>> {
    const HEAD: usize = offset_of!(layout::Vi, event);
    let mut found = Vec::new();
    let mut buffer = [0; HEAD];
    let mut counts = [0; size_of::<layout::Counts>()];
    for slot in used(source, bound)? {
        found.extend(vi(source, slot, &mut buffer, &mut counts)?);
    }
    Ok(found)
}

impl Vi {
    /// Reads the VI in a slot with its events and descriptors. `None`: there is none.
    ///
    /// # Errors
    /// The file is too short.
    pub fn read(source: &(impl Source + ?Sized), slot: usize) -> io::Result<Option<Vi>> {
        if slot >= VIS {
            return Ok(None);
        }
        let mut buffer = [0; size_of::<layout::Vi>()];
        let mut counts = [0; size_of::<layout::Counts>()];
        let Some(mut one) = vi(source, slot, &mut buffer, &mut counts)? else {
            return Ok(None);
        };
        let record = Record(&buffer);
        one.events = events(&record, one.event_count);
        let word = record.word(offset_of!(layout::Vi, flight));
        let queues = [one.send, one.recv];
        for (queue, (list, counted)) in one.descriptors.iter_mut().zip(queues).enumerate() {
            if let Some(ring) = Ring::of(word, queue) {
                *list = descriptors(source, slot, queue, ring, counted, &counts);
            }
        }
        Ok(Some(one))
    }
}

/// The VI in a slot, without events and descriptors; the buffers have its record, or the beginning, and its counters then.
fn vi(
    source: &(impl Source + ?Sized),
    slot: usize,
    buffer: &mut [u8],
    counts: &mut [u8],
) -> io::Result<Option<Vi>> {
    let place = layout::VIS_AT + slot * size_of::<layout::Vi>();
    settled(source, buffer, place, offset_of!(layout::Vi, sequence))?;
    let record = Record(buffer);
    if record.word(offset_of!(layout::Vi, handle)) == 0 {
        return Ok(None);
    }
    // Last: a counter that is older than what it counts from would seem to have wrapped.
    let place = layout::COUNTS_AT + slot * size_of::<layout::Counts>();
    source.read(counts, place)?;
    let mut one = of_vi(&record, &Record(counts), slot);
    if record.word(offset_of!(layout::Vi, sampled)) == 1 {
        one.sampled = Some(Box::new(sampled(source, slot)?));
    }
    Ok(Some(one))
}

/// The slots below `bound` that have a VI. Many are read at a time: a file that is one hole takes no call for each.
fn used(source: &(impl Source + ?Sized), bound: usize) -> io::Result<Vec<usize>> {
    const PART: usize = 64;
    let mut used = Vec::new();
    let mut buffer = vec![0; PART.min(bound) * size_of::<layout::Vi>()];
    for first in (0..bound).step_by(PART) {
        let part = &mut buffer[..PART.min(bound - first) * size_of::<layout::Vi>()];
        source.read(part, layout::VIS_AT + first * size_of::<layout::Vi>())?;
        let vis = part.chunks_exact(size_of::<layout::Vi>()).map(Record);
        let here = vis.map(|vi| vi.word(offset_of!(layout::Vi, handle)) != 0);
        used.extend(
            (first..)
                .zip(here)
                .filter_map(|(slot, here)| here.then_some(slot)),
        );
    }
    Ok(used)
}

fn of_vi(vi: &Record<'_>, counts: &Record<'_>, slot: usize) -> Vi {
    let lengths = vi.word(offset_of!(layout::Vi, lengths));
    let length = |number: u32, most: u64| (lengths >> (8 * number) & 0xFF).min(most) as usize;
    let queue = |queue: usize| {
        let queues = offset_of!(layout::Counts, queues) + queue * size_of::<layout::Counted>();
        let now = |at: usize| {
            let bytes = counts.bytes(queues + at, 4).try_into();
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let count = |number: usize, now: u32| {
            let place = (2 * queue + number) * size_of::<layout::Since>();
            let at = offset_of!(layout::Vi, since) + place;
            let since = vi.word(at + offset_of!(layout::Since, counter)) as u32;
            let count = vi.word(at + offset_of!(layout::Since, count));
            count.wrapping_add(now.wrapping_sub(since).into())
        };
        let taken = count(1, now(offset_of!(layout::Counted, taken)));
        let completed = vi.word(offset_of!(layout::Vi, completed) + 8 * queue);
        Counted {
            posted: count(0, now(offset_of!(layout::Counted, posted))),
            taken,
            completed: completed.max(taken),
            failed: counts.word(offset_of!(layout::Counts, failed) + 8 * queue),
        }
    };
    let event_count = vi.word(offset_of!(layout::Vi, events));
    Vi {
        slot,
        handle: vi.word(offset_of!(layout::Vi, handle)),
        nic: vi.word(offset_of!(layout::Vi, nic)),
        send_cq: vi.word(offset_of!(layout::Vi, send_cq)),
        recv_cq: vi.word(offset_of!(layout::Vi, recv_cq)),
        number: vi.word(offset_of!(layout::Vi, number)),
        state: vi.word(offset_of!(layout::Vi, state)),
        state_since: vi.word(offset_of!(layout::Vi, state_since)),
        level: vi.word(offset_of!(layout::Vi, level)),
        transfer_max: vi.word(offset_of!(layout::Vi, transfer_max)),
        tag: vi.word(offset_of!(layout::Vi, tag)),
        rdma: vi.word(offset_of!(layout::Vi, rdma)),
        connections: vi.word(offset_of!(layout::Vi, connections)),
        peer: vi.word(offset_of!(layout::Vi, peer)),
        peer_pid: vi.word(offset_of!(layout::Vi, peer_pid)),
        peer_vi: vi.word(offset_of!(layout::Vi, peer_vi)),
        peer_address: vi
            .bytes(offset_of!(layout::Vi, peer_address), length(0, 32))
            .to_vec(),
        local_point: vi
            .bytes(offset_of!(layout::Vi, local_point), length(1, 64))
            .to_vec(),
        remote_point: vi
            .bytes(offset_of!(layout::Vi, remote_point), length(2, 64))
            .to_vec(),
        send: queue(0),
        recv: queue(1),
        errors: vi.word(offset_of!(layout::Vi, errors)),
        sampled: None,
        event_count,
        events: Vec::new(),
        descriptors: Default::default(),
    }
}

fn sampled(source: &(impl Source + ?Sized), slot: usize) -> io::Result<Sampled> {
    let mut buffer = [0; size_of::<layout::Sampled>()];
    source.read(
        &mut buffer,
        layout::SAMPLED_AT + slot * size_of::<layout::Sampled>(),
    )?;
    let record = Record(&buffer);
    let word = |at: usize, place: usize| record.word(at + 8 * place);
    Ok(Sampled {
        bytes: [0, 1].map(|queue| word(offset_of!(layout::Sampled, bytes), queue)),
        latency_sum: record.word(offset_of!(layout::Sampled, latency_sum)),
        latency: std::array::from_fn(|range| word(offset_of!(layout::Sampled, latency), range)),
        latest: record.word(offset_of!(layout::Sampled, latest)),
    })
}

/// The value of the counter `posted` of a queue.
fn posted(counts: &Record<'_>, queue: usize) -> u32 {
    let at = offset_of!(layout::Counts, queues) + queue * size_of::<layout::Counted>();
    let bytes = counts.bytes(at + offset_of!(layout::Counted, posted), 4);
    u32::from_ne_bytes(bytes.try_into().unwrap_or_default())
}

/// The descriptors of a ring. None if the file has no room for it: it was cut short, or the word lies. Entries without an address
/// are none: holes of a file take no memory here.
fn descriptors(
    source: &(impl Source + ?Sized),
    slot: usize,
    queue: usize,
    ring: Ring,
    counted: Counted,
    counts: &[u8],
) -> Vec<Posted> {
    let mut bytes = vec![0; ring.room as usize * ring.entry];
    let place = layout::FLIGHTS_AT + slot * size_of::<layout::Flight>();
    let mut after = [0; size_of::<layout::Counts>()];
    let read = source
        .read(&mut bytes, place + queue * size_of::<layout::Flight>() / 2)
        .and_then(|()| {
            source.read(
                &mut after,
                layout::COUNTS_AT + slot * size_of::<layout::Counts>(),
            )
        });
    if read.is_err() {
        return Vec::new();
    }
    let now = posted(&Record(counts), queue);
    // In a process that runs, what was posted meanwhile may lie where the oldest were.
    let meanwhile = posted(&Record(&after), queue).wrapping_sub(now);
    let kept = u64::from(ring.room.saturating_sub(meanwhile)).min(counted.posted);
    let one = |back: u64| {
        let raw = now.wrapping_sub(1 + back as u32);
        let at = (raw & (ring.room - 1)) as usize * ring.entry;
        let entry = Record(&bytes[at..at + ring.entry]);
        let half = |at: usize| {
            let bytes = entry.bytes(at, 4).try_into();
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let number = counted.posted - back;
        Posted {
            number,
            descriptor: match ring.entry {
                16 => entry.word(0),
                _ => half(0).into(),
            },
            memory: half(ring.entry - 8),
            status: half(ring.entry - 4),
            is_taken: number <= counted.taken,
        }
    };
    let posted = (0..kept).rev().map(one);
    posted.filter(|posted| posted.descriptor != 0).collect()
}

/// The numbers of the latest entries of a ring, the oldest first.
fn latest(count: u64, room: usize) -> impl Iterator<Item = u64> {
    count.saturating_sub(room as u64)..count
}

fn events(vi: &Record<'_>, count: u64) -> Vec<Event> {
    let event = |number: u64| {
        let place = number as usize % EVENTS * size_of::<layout::Event>();
        let at = offset_of!(layout::Vi, event) + place;
        let what = vi.word(at + offset_of!(layout::Event, what));
        Event {
            time: vi.word(at + offset_of!(layout::Event, time)),
            happened: Happened::of(what),
        }
    };
    latest(count, EVENTS).map(event).collect()
}

#[cfg(test)]
mod tests;

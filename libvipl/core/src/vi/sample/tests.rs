use super::*;
use crate::device::{close, open_without_agent};
use crate::nic::resolve;
use crate::plugin::host::HOST;
use crate::vi::state::CONNECTED;
use crate::vi::tests::device;
use crate::vi::{destroy, done, lock, post};

const GOOD: u32 = VIP_STATUS_DONE;
const BAD: u32 = VIP_STATUS_DONE | VIP_STATUS_TRANSPORT_ERROR;

#[repr(C, align(64))]
struct Descriptor([u32; 16]);

/// A connected VI whose plug-in is the test.
struct Bench {
    nic: VIP_NIC_HANDLE,
    vi: VIP_VI_HANDLE,
    descriptors: Vec<Descriptor>,
}

impl Bench {
    /// `None` where nothing can be published.
    fn new() -> Option<Bench> {
        vipl_guard::install();
        let nic = open_without_agent(device::plugin(false)).unwrap();
        let mut bench = Bench {
            nic,
            vi: std::ptr::null_mut(),
            descriptors: (0..64).map(|_| Descriptor([0; 16])).collect(),
        };
        bench.create();
        let is_published = resolve(nic).unwrap().process.pages().is_published();
        is_published.then_some(bench)
    }

    fn create(&mut self) {
        self.vi = device::vi(self.nic);
        let mut vi = lock(self.vi).unwrap();
        vi.abi.state = CONNECTED;
        vi.check_descriptor = false;
    }

    /// Posts a descriptor of this length.
    fn post(&mut self, which: Which, length: u32) {
        let place = {
            let mut vi = lock(self.vi).unwrap();
            vi.queue(which).0.posted as usize % self.descriptors.len()
        };
        self.descriptors[place].0[6] = length;
        let at = (&raw mut self.descriptors[place]).cast();
        assert_eq!(post(self.vi, which, at, 0), Ok(()));
    }

    /// Completes so many, as a plug-in does, which reports each of them or all at the end.
    fn complete(&self, which: Which, count: u32, status: u32, reports_each: bool) {
        let mut vi = lock(self.vi).unwrap();
        let abi = vi.abi();
        for place in 0..count {
            let queue: *mut vipl_queue = vi.queue(which).0;
            // SAFETY: the VI is locked, and the test has posted so many.
            unsafe {
                (*entry(&*queue, (*queue).completed)).status = status;
                (*queue).completed = (*queue).completed.wrapping_add(1);
                if (*queue).signal != 0 && (reports_each || place + 1 == count) {
                    (HOST.completed)(abi, queue);
                }
            }
        }
    }

    fn take(&self, which: Which, count: u32) {
        for _ in 0..count {
            assert!(!done(self.vi, which).descriptor.is_null());
        }
    }

    /// One message after the other.
    fn messages(&mut self, which: Which, lengths: impl IntoIterator<Item = u32>) {
        for length in lengths {
            self.post(which, length);
            self.complete(which, 1, GOOD, true);
            self.take(which, 1);
        }
    }

    fn bytes(&self, which: Which) -> u64 {
        let vi = lock(self.vi).unwrap();
        let bytes = |sampler: &Sampler| sampler.record.bytes[which.number()].get();
        vi.sampler.as_deref().map_or(0, bytes)
    }

    /// Sends whose time was taken.
    fn times(&self) -> u64 {
        let vi = lock(self.vi).unwrap();
        let latency = &vi.sampler.as_ref().unwrap().record.latency;
        latency.iter().map(layout::Word::get).sum()
    }

    fn set_gap(&self, which: Which, gap: u32) {
        let mut vi = lock(self.vi).unwrap();
        let mut sampler = vi.sampler.take().unwrap();
        let pace = &mut sampler.sides[which.number()].pace;
        // As if the latest sample were now, and none could follow for long.
        (pace.gap, pace.credit, pace.at) = (gap, 0, u64::MAX);
        vi.sampler = Some(sampler);
    }

    fn gap(&self, which: Which) -> u32 {
        let vi = lock(self.vi).unwrap();
        vi.sampler.as_ref().unwrap().sides[which.number()].pace.gap
    }

    fn end(self) {
        let left = {
            let vi = lock(self.vi).unwrap();
            [Which::Send, Which::Recv].map(|which| {
                let queue = [&vi.abi.send, &vi.abi.recv][which.number()];
                (which, queue.completed.wrapping_sub(queue.taken))
            })
        };
        left.into_iter()
            .for_each(|(which, count)| self.take(which, count));
        lock(self.vi).unwrap().abi.state = crate::vi::state::IDLE;
        assert_eq!((destroy(self.vi), close(self.nic)), (Ok(()), Ok(())));
    }
}

/// Messages of a program, one each `period`, until `end`. Returns how many were sampled, and the greatest gap.
fn samples(pace: &mut Pace, mut time: u64, period: u64, end: u64) -> (u64, u32) {
    let (mut count, mut most) = (0, 0);
    while time < end {
        pace.sampled(time);
        count += 1;
        most = most.max(pace.gap);
        let gap = if pace.gap == 1 { 1 } else { pace.next() };
        time += u64::from(gap) * period;
    }
    (count, most)
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn the_cost_is_bounded_by_time() {
    for period in [20, 25, 100, 1000, 10_000, 200_000] {
        let mut pace = Pace::START;
        let (count, most) = samples(&mut pace, SECOND, period, 2 * SECOND);
        // At more than 40 million a second the greatest gap is the bound.
        let rarest = SECOND / period / u64::from(GAP_MAX);
        let due = rarest.max(SECOND / SAMPLE_NS);
        assert!(count <= due + due / 5 + BURST, "{period} ns: {count}");
        // No more rarely than need be, either.
        let least = (due / 3).min(rarest * 9 / 10);
        assert!(count >= least && most <= GAP_MAX, "{period} ns: {count}");
    }
}

#[test]
fn each_message_of_a_slow_program_is_a_sample() {
    let mut pace = Pace::START;
    let (count, most) = samples(&mut pace, SECOND, 2 * SAMPLE_NS, 2 * SECOND);
    assert_eq!((count, most), (SECOND / (2 * SAMPLE_NS), 1));
    // A short burst now and then changes nothing.
    for burst in 0..100 {
        let begin = 3 * SECOND + burst * SECOND / 10;
        let (_, most) = samples(&mut pace, begin, 25, begin + 25 * (BURST - 1));
        assert_eq!(most, 1);
    }
}

#[test]
fn one_that_becomes_slow_is_counted_exactly_again() {
    let mut pace = Pace::START;
    samples(&mut pace, SECOND, 25, 2 * SECOND);
    assert!(pace.gap >= GAP_MAX / 2);
    samples(&mut pace, 2 * SECOND, SAMPLE_NS, 42 * SECOND);
    assert_eq!(pace.gap, 1);
}

/// Gaps are uneven, and as long as they should be on average.
#[test]
fn samples_follow_no_rhythm() {
    for gap in [2, 64, GAP_MAX] {
        let pace = |at| Pace { gap, credit: 0, at };
        let gaps: Vec<u64> = (1..2000).map(|at| pace(at).next().into()).collect();
        let mean = gaps.iter().sum::<u64>() as f64 / gaps.len() as f64;
        assert!((mean / f64::from(gap) - 1.0).abs() < 0.05, "{gap}: {mean}");
        let odd = gaps.iter().filter(|gap| *gap % 2 == 1).count();
        assert!((500..1500).contains(&odd), "{gap}: {odd}");
    }
}

#[test]
fn few_messages_are_counted_exactly() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.messages(Which::Send, 1..=20);
    let before = now_ns();
    bench.messages(Which::Recv, [500, 0, 30]);
    let vi = lock(bench.vi).unwrap();
    let latest = vi.sampler.as_ref().unwrap().record.latest.get();
    drop(vi);
    assert!((before..=now_ns()).contains(&latest), "{latest}");
    assert_eq!(
        (bench.bytes(Which::Send), bench.bytes(Which::Recv)),
        (210, 530)
    );
    // The first one finds nothing to keep its time in.
    assert_eq!(bench.times(), 19);
    // Several at a time, reported at once, and one that fails.
    for status in [GOOD, BAD, GOOD] {
        bench.post(Which::Send, 1000);
        bench.post(Which::Send, 2);
        bench.complete(Which::Send, 2, status, false);
        bench.take(Which::Send, 2);
    }
    assert_eq!(bench.bytes(Which::Send), 210 + 2 * 1002);
    assert_eq!(bench.times(), 19 + 2, "one at a time, and none that failed");
    bench.end();
}

#[test]
fn a_ring_may_grow_below_a_sample() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.messages(Which::Send, [7]);
    (1..=40).for_each(|length| bench.post(Which::Send, length));
    bench.complete(Which::Send, 39, GOOD, true);
    bench.take(Which::Send, 39);
    assert_eq!((bench.bytes(Which::Send), bench.times()), (7 + 39 * 20, 1));
    bench.complete(Which::Send, 1, GOOD, true);
    assert_eq!(bench.bytes(Which::Send), 7 + 820);
    bench.end();
}

#[test]
fn what_is_flushed_is_not_counted() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    for which in [Which::Send, Which::Recv] {
        bench.messages(which, [10, 20]);
        (0..5).for_each(|_| bench.post(which, 100));
        let mut vi = lock(bench.vi).unwrap();
        crate::vi::complete::flush(&mut vi, which);
        assert_eq!(vi.queue(which).0.signal, 0, "nothing is waited for");
        drop(vi);
        bench.take(which, 5);
        assert_eq!(bench.bytes(which), 30);
        bench.messages(which, [40]);
        assert_eq!(bench.bytes(which), 70);
    }
    bench.end();
}

#[test]
fn the_next_vi_of_a_slot_begins_anew() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.messages(Which::Send, [10, 20]);
    let (page, record) = {
        let vi = lock(bench.vi).unwrap();
        (vi.page, vi.sampler.as_ref().unwrap().record)
    };
    lock(bench.vi).unwrap().abi.state = crate::vi::state::IDLE;
    assert_eq!(page.sampled.get(), 1);
    assert_eq!(destroy(bench.vi), Ok(()));
    assert_eq!(page.sampled.get(), 0);
    // Other tests use slots, too.
    let others: Vec<VIP_VI_HANDLE> = std::iter::from_fn(|| {
        bench.create();
        let is_here = std::ptr::eq(lock(bench.vi).unwrap().page, page);
        (!is_here).then_some(bench.vi)
    })
    .take(100)
    .collect();
    if std::ptr::eq(lock(bench.vi).unwrap().page, page) {
        assert_eq!(page.sampled.get(), 0, "nothing has been sampled of it");
        bench.messages(Which::Recv, [5]);
        let bytes = [0, 1].map(|queue| record.bytes[queue].get());
        assert_eq!((page.sampled.get(), bytes, bench.times()), (1, [0, 5], 0));
    }
    for other in others {
        lock(other).unwrap().abi.state = crate::vi::state::IDLE;
        assert!(other == bench.vi || destroy(other).is_ok());
    }
    bench.end();
}

/// Between two samples the plug-in is asked for nothing, and descriptors are as long as the next sample; a pause counts the rest.
#[test]
fn many_messages_are_estimated() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    for which in [Which::Send, Which::Recv] {
        bench.messages(which, [100]);
        bench.set_gap(which, 8);
        bench.messages(which, [100]);
        assert_eq!((bench.bytes(which), bench.gap(which)), (200, 16));
        let mut samples = 0;
        for number in 1..=100 {
            let before = bench.bytes(which);
            bench.messages(which, [100]);
            let more = bench.bytes(which) - before;
            samples += u64::from(more > 0);
            assert!(more <= 4800 && bench.bytes(which) <= (2 + number) * 100);
            bench.set_gap(which, 16);
        }
        assert!((2..=8).contains(&samples), "{samples}");
        let mut vi = lock(bench.vi).unwrap();
        let mut sampler = vi.sampler.take().unwrap();
        sampler.sides[which.number()].pace.at = SECOND;
        settle_at(&mut vi, &mut sampler, SECOND + QUIET_NS - 1);
        assert_eq!(sampler.sides[which.number()].pace.gap, 16);
        settle_at(&mut vi, &mut sampler, SECOND + QUIET_NS);
        vi.sampler = Some(sampler);
        drop(vi);
        assert_eq!((bench.bytes(which), bench.gap(which)), (102 * 100, 1));
        bench.messages(which, [3, 4]);
        assert_eq!(bench.bytes(which), 102 * 100 + 7);
    }
    bench.end();
}

/// A plug-in that reports nothing, and memory that is no longer mapped.
#[test]
fn a_sample_may_come_to_nothing() {
    let Some(mut bench) = Bench::new() else {
        return;
    };
    bench.messages(Which::Send, [9]);
    for length in 1..=10 {
        bench.post(Which::Send, length);
        let mut vi = lock(bench.vi).unwrap();
        let (queue, _) = vi.queue(Which::Send);
        // SAFETY: as in `complete`.
        unsafe { (*entry(queue, queue.completed)).status = GOOD };
        queue.completed = queue.completed.wrapping_add(1);
        drop(vi);
        bench.take(Which::Send, 1);
    }
    bench.messages(Which::Send, [50]);
    assert_eq!(bench.bytes(Which::Send), 9 + 10 * 9 + 50);
    assert_eq!(bench.times(), 0);
    if vipl_guard::CATCHES {
        bench.post(Which::Send, 1);
        let mut vi = lock(bench.vi).unwrap();
        let (queue, _) = vi.queue(Which::Send);
        let gone = std::ptr::without_provenance_mut(64);
        // SAFETY: inside the ring.
        unsafe { (*entry(queue, queue.completed)).descriptor = gone };
        drop(vi);
        bench.complete(Which::Send, 1, GOOD, true);
        assert_eq!(bench.bytes(Which::Send), 149);
    }
    bench.end();
}

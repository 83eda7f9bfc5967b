//! Registered memory that peers map (setting `share_regions`): RDMA is a store, without a system call.
//!
//! While a region is registered its whole pages lie in a memfd of this process, at the offset that is their address,
//! and are mapped from there where they have always been. A peer that may use the region maps the same pages; see
//! `window`. What lies on the first and the last page beside other data stays where it is, and so does memory that is
//! not plain: stacks, files, huge pages, what other processes share already. Peers reach that as before.
//!
//! Pages are moved by copying them and putting the copy in their place, so nothing may write to them meanwhile: neither
//! another thread, which faults instead of losing its write, nor the kernel on behalf of one, whose system call fails.
//! That is the program's part of the bargain, and why the setting is off by default (decision 0038).
//!
//! A fork does not inherit pages of a memfd as a program expects of its memory: the child would share them with its
//! parent. They are left out, and the child puts copies there, for which its parent waits.

mod fork;
mod moving;

use std::collections::BTreeMap;
use std::io;

use vipl_sys::fd::{Identity, Kept};
use vipl_sys::mutex::Mutex;
use vipl_sys::shm;

use moving::{move_in, move_out};

/// Bytes of the memfd: one for each address of a program.
const SPACE: usize = if usize::BITS == 32 {
    !0xFFF
} else {
    1 << (47 % usize::BITS)
};
/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// Pages that are in the memfd, from the key on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    end: u64,
    /// Regions that lie here.
    regions: u32,
}

/// Spans do not overlap.
#[derive(Default)]
struct Spans(BTreeMap<u64, Span>);

impl Spans {
    const fn new() -> Spans {
        Spans(BTreeMap::new())
    }

    /// Makes a span begin at `at` if one covers it.
    fn split(&mut self, at: u64) {
        if let Some((_, span)) = self.0.range_mut(..at).next_back()
            && span.end > at
        {
            let rest = *span;
            span.end = at;
            self.0.insert(at, rest);
        }
    }

    /// Adds a region; gives the ranges that were in no other one.
    fn add(&mut self, first: u64, end: u64) -> Vec<(u64, u64)> {
        self.split(first);
        self.split(end);
        let mut new = Vec::new();
        let mut at = first;
        while at < end {
            let next = self.0.range_mut(at..end).next();
            match next {
                Some((&start, span)) if start == at => {
                    span.regions += 1;
                    at = span.end;
                }
                next => {
                    let stop = next.map_or(end, |(&start, _)| start);
                    self.0.insert(
                        at,
                        Span {
                            end: stop,
                            regions: 1,
                        },
                    );
                    new.push((at, stop));
                    at = stop;
                }
            }
        }
        new
    }

    /// Takes a region away; gives the ranges that are in no other one.
    fn remove(&mut self, first: u64, end: u64) -> Vec<(u64, u64)> {
        self.split(first);
        self.split(end);
        let mut old = Vec::new();
        for (&start, span) in self.0.range_mut(first..end) {
            span.regions -= 1;
            if span.regions == 0 {
                old.push((start, span.end));
            }
        }
        for (start, _) in &old {
            self.0.remove(start);
        }
        old
    }
}

/// The memfd of this process, and what lies in it.
struct Pages {
    memory: Option<Kept>,
    spans: Spans,
}

static PAGES: Mutex<Pages> = Mutex::new(Pages {
    memory: None,
    spans: Spans::new(),
});

/// Which descriptor of this process is the memfd, and which file that is.
pub(crate) fn memory() -> io::Result<(i32, u64)> {
    let mut pages = PAGES.lock();
    if pages.memory.is_none() {
        // Made once: peers keep what they have mapped of it.
        fork::prepare()?;
        pages.memory = Some(Kept::new(shm::create(c"vipl-regions", SPACE)?));
    }
    let number = number(&pages)?;
    let identity = Identity::of(number).ok_or_else(io::Error::last_os_error)?;
    Ok((number, identity.inode()))
}

/// The whole pages within a range.
pub(crate) fn whole(base: u64, bytes: u64) -> Option<(u64, u64)> {
    let first = base.checked_next_multiple_of(PAGE)?;
    let end = base.checked_add(bytes)? / PAGE * PAGE;
    (first < end && end <= SPACE as u64).then_some((first, end))
}

/// Moves pages into the memfd, those that are not there already.
///
/// # Errors
/// What is there stays as it was: it is not plain memory, or there is no room.
pub(crate) fn share(first: u64, end: u64) -> io::Result<()> {
    let mut pages = PAGES.lock();
    let number = number(&pages)?;
    let new = pages.spans.add(first, end);
    for (index, &(start, stop)) in new.iter().enumerate() {
        if let Err(error) = move_in(number, start, stop) {
            pages.spans.remove(first, end);
            for &(start, stop) in &new[..index] {
                move_out(number, start, stop);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// A region that was shared has gone: pages that are in no other one become memory of this process alone again.
pub(crate) fn unshare(first: u64, end: u64) {
    let mut pages = PAGES.lock();
    let old = pages.spans.remove(first, end);
    if let Ok(number) = number(&pages) {
        for (start, stop) in old {
            move_out(number, start, stop);
        }
    }
}

fn number(pages: &Pages) -> io::Result<i32> {
    pages
        .memory
        .as_ref()
        .ok_or_else(|| io::Error::other("there is no memory"))?
        .fd()
}

#[cfg(test)]
mod tests;

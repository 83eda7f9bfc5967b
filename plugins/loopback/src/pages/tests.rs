use std::cell::Cell;
use std::ptr::null_mut;

use super::*;

/// Memory of some pages, each filled with its number, and what unmaps it.
struct Plain {
    base: u64,
    pages: usize,
    /// A bit for each page that is not ours any more: another test may have mapped something there.
    unmapped: Cell<u64>,
}

impl Plain {
    fn new(pages: usize) -> Plain {
        // SAFETY: a new mapping of this size.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(null_mut(), pages * PAGE as usize, protection, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        let plain = Plain {
            base: base.expose_provenance() as u64,
            pages,
            unmapped: Cell::new(0),
        };
        for page in 0..pages {
            plain.set(page, page as u8 + 1);
        }
        plain
    }

    fn at(&self, page: usize) -> u64 {
        self.base + page as u64 * PAGE
    }

    fn place(&self, page: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.at(page) as usize + 77)
    }

    fn set(&self, page: usize, value: u8) {
        // SAFETY: inside the mapping.
        unsafe { self.place(page).write_volatile(value) };
    }

    fn get(&self, page: usize) -> u8 {
        // SAFETY: as above.
        unsafe { self.place(page).read_volatile() }
    }

    fn unmap(&self) {
        (0..self.pages).for_each(|page| self.unmap_page(page));
    }

    fn unmap_page(&self, page: usize) {
        if self.unmapped.get() >> page & 1 == 0 {
            self.unmapped.set(self.unmapped.get() | 1 << page);
            let place = std::ptr::with_exposed_provenance_mut(self.at(page) as usize);
            // SAFETY: mapped by `new`, and not unmapped since.
            assert_eq!(unsafe { libc::munmap(place, PAGE as usize) }, 0);
        }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// What a peer finds at an address, and whether there is anything.
fn seen(address: u64) -> Option<u8> {
    let (number, _) = memory().unwrap();
    // SAFETY: a system call, and room for its answer.
    unsafe {
        let data = libc::lseek64(number, address as libc::off64_t, libc::SEEK_DATA);
        let mut byte = 0u8;
        (data == address as libc::off64_t
            && libc::pread64(
                number,
                (&raw mut byte).cast(),
                1,
                address as libc::off64_t + 77,
            ) == 1)
            .then_some(byte)
    }
}

#[test]
fn the_same_bytes_are_in_both_places() {
    let plain = Plain::new(3);
    memory().unwrap();
    share(plain.at(0), plain.at(3)).unwrap();
    assert_eq!([0, 1, 2].map(|page| plain.get(page)), [1, 2, 3]);
    plain.set(1, 99);
    assert_eq!(seen(plain.at(1)), Some(99));
    unshare(plain.at(0), plain.at(3));
    assert_eq!([0, 1, 2].map(|page| plain.get(page)), [1, 99, 3]);
    assert_eq!(seen(plain.at(1)), None, "the room is given back");
    plain.set(1, 5);
    assert_eq!(plain.get(1), 5);
}

#[test]
fn regions_that_overlap_share_their_pages() {
    let plain = Plain::new(6);
    memory().unwrap();
    share(plain.at(1), plain.at(3)).unwrap();
    share(plain.at(0), plain.at(5)).unwrap();
    plain.set(2, 50);
    unshare(plain.at(1), plain.at(3));
    assert_eq!(seen(plain.at(2)), Some(50));
    assert_eq!(seen(plain.at(4)), Some(5));
    assert_eq!(seen(plain.at(5)), None);
    unshare(plain.at(0), plain.at(5));
    assert_eq!(seen(plain.at(2)), None);
    assert_eq!(
        (0..6).map(|page| plain.get(page)).collect::<Vec<_>>(),
        [1, 2, 50, 4, 5, 6]
    );
}

#[test]
fn what_is_not_plain_memory_stays_where_it_is() {
    let plain = Plain::new(4);
    memory().unwrap();
    let place = std::ptr::with_exposed_provenance_mut(plain.at(2) as usize);
    // SAFETY: a page of ours.
    let status = unsafe { libc::mprotect(place, PAGE as usize, libc::PROT_READ) };
    assert_eq!(status, 0);
    assert!(share(plain.at(0), plain.at(4)).is_err());
    assert_eq!(seen(plain.at(0)), None);
    plain.set(0, 9);
    assert_eq!([0, 2, 3].map(|page| plain.get(page)), [9, 3, 4]);
    plain.unmap_page(2);
    assert!(share(plain.at(1), plain.at(4)).is_err(), "a hole");
    share(plain.at(0), plain.at(2)).unwrap();
    unshare(plain.at(0), plain.at(2));
}

/// A program may free what is still registered, and the addresses may be used for something else.
#[test]
fn what_the_program_has_put_there_since_stays() {
    let plain = Plain::new(3);
    memory().unwrap();
    share(plain.at(0), plain.at(3)).unwrap();
    let place = std::ptr::with_exposed_provenance_mut(plain.at(1) as usize);
    // SAFETY: pages of ours.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let again = libc::mmap(place, PAGE as usize, protection, flags, -1, 0);
        assert_eq!(again, place);
    }
    plain.unmap_page(2);
    plain.set(1, 200);
    unshare(plain.at(0), plain.at(3));
    assert_eq!([0, 1].map(|page| plain.get(page)), [1, 200]);
}

#[test]
fn a_child_has_copies_of_the_moment_of_the_fork() {
    let plain = Plain::new(2);
    memory().unwrap();
    share(plain.at(0), plain.at(2)).unwrap();
    plain.set(0, 33);
    // SAFETY: the child reads and writes its own memory, and ends.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let found = [0, 1].map(|page| plain.get(page)) == [33, 2];
            plain.set(0, 44);
            libc::_exit(i32::from(!found));
        }
        plain.set(1, 55);
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    assert_eq!(status, 0, "as `wait` gives it");
    assert_eq!([0, 1].map(|page| plain.get(page)), [33, 55]);
    unshare(plain.at(0), plain.at(2));
}

/// A peer that goes on writing has pages of its own then.
#[test]
fn a_peer_that_keeps_its_mapping_harms_nobody() {
    let plain = Plain::new(1);
    let (number, _) = memory().unwrap();
    share(plain.at(0), plain.at(1)).unwrap();
    let theirs = vipl_sys::shm::Mapping::open_at(number, plain.at(0), PAGE as usize, true).unwrap();
    let place = theirs.base().wrapping_add(77);
    // SAFETY: inside the mapping.
    unsafe { place.write_volatile(70) };
    assert_eq!(plain.get(0), 70);
    unshare(plain.at(0), plain.at(1));
    // SAFETY: as above.
    unsafe { place.write_volatile(71) };
    assert_eq!(plain.get(0), 70);
    share(plain.at(0), plain.at(1)).unwrap();
    assert_eq!(plain.get(0), 70, "nothing of that comes back");
    unshare(plain.at(0), plain.at(1));
}

/// As daemons do. In a process of its own, because the descriptor is that of the process.
#[test]
fn a_program_that_closes_the_descriptor_keeps_its_memory() {
    let plain = Plain::new(2);
    // SAFETY: the child makes system calls, calls the functions under test, and ends.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let shared = memory().is_ok() && share(plain.at(0), plain.at(1)).is_ok();
            libc::close(memory().map_or(-1, |(number, _)| number));
            let refused = memory().is_err() && share(plain.at(1), plain.at(2)).is_err();
            unshare(plain.at(0), plain.at(1));
            plain.set(0, 8);
            let kept = [0, 1].map(|page| plain.get(page)) == [8, 2];
            libc::_exit(i32::from(!shared || !refused || !kept));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    assert_eq!(status, 0, "as `wait` gives it");
}

#[test]
fn spans_count_the_regions_in_them() {
    let mut spans = Spans::default();
    assert_eq!(spans.add(10, 20), [(10, 20)]);
    assert_eq!(spans.add(15, 30), [(20, 30)]);
    assert_eq!(spans.add(0, 40), [(0, 10), (30, 40)]);
    assert_eq!(spans.remove(15, 30), []);
    assert_eq!(spans.remove(0, 40), [(0, 10), (20, 30), (30, 40)]);
    assert_eq!(spans.remove(10, 20), [(10, 15), (15, 20)]);
    assert!(spans.0.is_empty());
}

#[test]
fn only_whole_pages_are_shared() {
    assert_eq!(whole(4096, 4096), Some((4096, 8192)));
    assert_eq!(
        whole(4097, 8190),
        Some((8192, 12288 - 4096 + 4096)).filter(|_| false)
    );
    assert_eq!(whole(4097, 4096), None);
    assert_eq!(whole(4000, 8192), Some((4096, 12288 - 4096)));
    assert_eq!(whole(u64::MAX - 10, 5), None);
}

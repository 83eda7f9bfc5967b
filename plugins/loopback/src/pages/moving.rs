//! Pages of this process go into its memfd and come back: a copy takes their place.

use std::io;

use vipl_sys::fd::Identity;

/// A mapping of this process, as `/proc/self/maps` lists it.
struct Listed {
    end: u64,
    is_plain: bool,
    protection: i32,
    /// File and place, if it is one that is shared.
    shared: Option<(u64, u64)>,
}

/// The mappings that cover a range, in order, each cut to it. Holes are left out.
fn listed(first: u64, end: u64) -> io::Result<Vec<(u64, Listed)>> {
    let maps = std::fs::read_to_string("/proc/thread-self/maps")?;
    let mut found = Vec::new();
    for line in maps.lines() {
        let Some((start, listed)) = parse(line) else {
            return Err(io::Error::other("/proc/thread-self/maps is not understood"));
        };
        if listed.end > first && start < end {
            let cut = first.saturating_sub(start);
            let shared = listed.shared.map(|(file, place)| (file, place + cut));
            let end = listed.end.min(end);
            found.push((
                start + cut,
                Listed {
                    end,
                    shared,
                    ..listed
                },
            ));
        }
    }
    Ok(found)
}

/// `7f00-7f80 rw-p 00000000 00:00 0   [heap]`
fn parse(line: &str) -> Option<(u64, Listed)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let permissions = words.next()?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let place = number(words.next()?)?;
    let inode = words.nth(1)?.parse::<u64>().ok()?;
    let name = words.next().unwrap_or("");
    let has = |letter, flag| {
        if permissions.contains(letter) {
            flag
        } else {
            0
        }
    };
    let protection =
        has('r', libc::PROT_READ) | has('w', libc::PROT_WRITE) | has('x', libc::PROT_EXEC);
    let is_named_memory = name.is_empty() || name == "[heap]" || name.starts_with("[anon:");
    let listed = Listed {
        end: number(end)?,
        is_plain: permissions == "rw-p" && inode == 0 && is_named_memory,
        protection,
        shared: permissions.ends_with('s').then_some((inode, place)),
    };
    Some((number(start)?, listed))
}

/// Puts a copy in the memfd in the place of these pages.
pub(super) fn move_in(memory: i32, first: u64, end: u64) -> io::Result<()> {
    let mut at = first;
    for (start, listed) in listed(first, end)? {
        if start == at && listed.is_plain {
            at = listed.end;
        }
    }
    if at != end {
        return Err(io::Error::other("it is not all plain memory"));
    }
    let bytes = (end - first) as usize;
    let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(first as usize);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is plain memory of the program, and keeps its contents; the copy is nobody else's until
    // it is put there.
    unsafe {
        // Room is taken now: no store finds later that there is none.
        if libc::fallocate64(memory, 0, first as libc::off64_t, bytes as libc::off64_t) != 0 {
            return Err(io::Error::last_os_error());
        }
        let none = std::ptr::null_mut();
        let offset = first as libc::off64_t;
        let copy = libc::mmap64(none, bytes, protection, libc::MAP_SHARED, memory, offset);
        if copy == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            drop_pages(memory, first, bytes);
            return Err(error);
        }
        let moved = libc::mprotect(place, bytes, libc::PROT_READ) == 0 && {
            std::ptr::copy_nonoverlapping(place.cast::<u8>(), copy.cast::<u8>(), bytes);
            // The child of a fork never has them, not for a moment either.
            libc::madvise(copy, bytes, libc::MADV_DONTFORK) == 0 && replace(copy, bytes, place)
        };
        if !moved {
            let error = io::Error::last_os_error();
            libc::mprotect(place, bytes, protection);
            libc::munmap(copy, bytes);
            drop_pages(memory, first, bytes);
            return Err(error);
        }
    }
    Ok(())
}

/// Puts private copies in the place of these pages, where they are still mapped, and gives the memfd's room back.
pub(super) fn move_out(memory: i32, first: u64, end: u64) {
    let Some(file) = Identity::of(memory).map(|identity| identity.inode()) else {
        return;
    };
    // What the program has mapped there since, or unmapped, is its own affair.
    for (start, listed) in listed(first, end).unwrap_or_default() {
        if listed.shared != Some((file, start)) {
            continue;
        }
        let bytes = (listed.end - start) as usize;
        let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start as usize);
        // SAFETY: a mapping that `move_in` put there; it keeps contents and protection.
        unsafe {
            libc::mprotect(place, bytes, listed.protection & !libc::PROT_WRITE);
            let Some(copy) = private_copy(memory, start, bytes, std::ptr::null_mut()) else {
                // There is no memory for a copy: they stay shared, and nobody is told of them any more.
                libc::mprotect(place, bytes, listed.protection);
                continue;
            };
            libc::mprotect(copy, bytes, listed.protection);
            if !replace(copy, bytes, place) {
                libc::mprotect(place, bytes, listed.protection);
                libc::munmap(copy, bytes);
                continue;
            }
        }
        drop_pages(memory, start, bytes);
    }
}

/// Moves a mapping to a place, in the place of what is there.
///
/// # Safety
/// Both are mappings of this many bytes; nothing is lost with what is there.
unsafe fn replace(from: *mut libc::c_void, bytes: usize, to: *mut libc::c_void) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: by contract.
    unsafe { libc::mremap(from, bytes, bytes, flags, to) != libc::MAP_FAILED }
}

/// Memory of this process alone with what lies in the memfd: at `place`, if nothing is there, or anywhere.
pub(super) fn private_copy(
    memory: i32,
    offset: u64,
    bytes: usize,
    place: *mut libc::c_void,
) -> Option<*mut libc::c_void> {
    let fixed = if place.is_null() {
        0
    } else {
        libc::MAP_FIXED_NOREPLACE
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    // SAFETY: a new mapping, which replaces none, written by the kernel as far as it reaches.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let copy = libc::mmap(place, bytes, protection, flags, -1, 0);
        if copy == libc::MAP_FAILED {
            return None;
        }
        let mut done = 0;
        while done < bytes {
            let to = copy.cast::<u8>().add(done).cast();
            let at = (offset + done as u64) as libc::off64_t;
            let count = libc::pread64(memory, to, bytes - done, at);
            if count <= 0 {
                libc::munmap(copy, bytes);
                return None;
            }
            done += count as usize;
        }
        Some(copy)
    }
}

/// Gives room of the memfd back.
fn drop_pages(memory: i32, first: u64, bytes: usize) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a system call; nothing of this process is mapped there any more.
    unsafe { libc::fallocate64(memory, mode, first as libc::off64_t, bytes as libc::off64_t) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_understood() {
        let plain = parse("7f00a000-7f00c000 rw-p 00000000 00:00 0 ").unwrap();
        assert_eq!(
            (plain.0, plain.1.end, plain.1.is_plain),
            (0x7f00_a000, 0x7f00_c000, true)
        );
        for (line, is_plain) in [
            (
                "1000-2000 rw-p 00000000 00:00 0                          [heap]",
                true,
            ),
            (
                "1000-2000 rw-p 00000000 00:00 0                          [anon:pool]",
                true,
            ),
            (
                "1000-2000 rw-p 00000000 00:00 0                          [stack]",
                false,
            ),
            ("1000-2000 r--p 00000000 00:00 0 ", false),
            ("1000-2000 rw-p 00001000 fd:00 77    /bin/cat", false),
            (
                "1000-2000 rw-s 00000000 00:01 1024  /dev/zero (deleted)",
                false,
            ),
        ] {
            assert_eq!(
                parse(line).map(|(_, listed)| listed.is_plain),
                Some(is_plain),
                "{line}"
            );
        }
        let line = "5000-7000 rw-s 00005000 00:01 99 /memfd:vipl-regions (deleted)";
        let shared = parse(line).unwrap().1;
        assert_eq!(shared.shared, Some((99, 0x5000)));
        assert_eq!(shared.protection, libc::PROT_READ | libc::PROT_WRITE);
        assert!(parse("what").is_none());
    }
}

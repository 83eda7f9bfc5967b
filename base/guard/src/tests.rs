use super::*;

fn page(protection: libc::c_int) -> *mut u8 {
    // SAFETY: a fresh anonymous mapping.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            8192,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

#[test]
fn every_length_is_copied_exactly() {
    install();
    let from: Vec<u8> = (0..3000u32).map(|i| (i * 7 + 1) as u8).collect();
    for length in (0..1100).chain([2047, 2048, 2999]) {
        for blocks in [false, true] {
            let mut to = vec![0xEEu8; 3001];
            let (at, source) = (to.as_mut_ptr(), from.as_ptr());
            if blocks && length <= 32 {
                continue;
            }
            let routine = if blocks { copy_blocks } else { copy };
            // SAFETY: the test owns both ranges.
            unsafe { routine(at, source, length) }.unwrap();
            assert_eq!(&to[..length], &from[..length], "length {length}");
            assert!(
                to[length..].iter().all(|&byte| byte == 0xEE),
                "length {length}"
            );
        }
    }
}

/// The last four or eight bytes lie in an inaccessible page: all others have been written before those.
#[cfg(all(
    not(miri),
    any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
))]
#[test]
fn what_is_watched_is_written_last() {
    install();
    let from: Vec<u8> = (1..101).collect();
    let memory = page(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: the second page of the mapping.
    unsafe { libc::mprotect(memory.add(4096).cast(), 4096, libc::PROT_NONE) };
    for watched in [4, 8] {
        for length in watched..100 {
            let to = memory.wrapping_add(4096 + watched - length);
            // SAFETY: the test owns the first page; faults are caught.
            let copied = unsafe {
                to.write_bytes(0, length - watched);
                copy_watched(to, from.as_ptr(), length)
            };
            assert_eq!(copied, Err(Fault));
            // SAFETY: these bytes lie in the first page.
            let others = unsafe { std::slice::from_raw_parts(to, length - watched) };
            assert_eq!(others, &from[..length - watched], "{length}, {watched}");
        }
    }
    for at in 0..80 {
        for length in 0..100 {
            let to = memory.wrapping_add(at);
            // SAFETY: the test owns the first page.
            let there = unsafe {
                memory.write_bytes(0, 200);
                copy_watched(to, from.as_ptr(), length).expect("memory");
                std::slice::from_raw_parts(memory, 200)
            };
            assert_eq!(there[at..at + length], from[..length]);
            let outside = there[..at].iter().chain(&there[at + length..]);
            assert_eq!(outside.copied().max(), Some(0));
        }
    }
}

/// Copies whose distance is slightly more than a page use another routine.
#[test]
fn every_distance_is_copied_exactly() {
    install();
    let mut memory: Vec<u8> = (0..16_384u32).map(|i| (i * 7 + i / 256) as u8).collect();
    for distance in (4090..4140).chain([8192 + 16, 8192 + 31]) {
        for length in [767, 768, 1000, 4001] {
            let mut expected = memory.clone();
            expected.copy_within(5..5 + length, 5 + distance);
            let from = memory.as_mut_ptr().wrapping_add(5);
            // SAFETY: the test owns both ranges, which are disjoint.
            unsafe { copy(from.wrapping_add(distance), from, length) }.unwrap();
            assert!(memory == expected, "{length} bytes over {distance}");
        }
    }
}

#[cfg(all(
    not(miri),
    any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")
))]
#[test]
fn bad_addresses_are_errors() {
    install();
    let none = page(libc::PROT_NONE);
    let read_only = page(libc::PROT_READ);
    let good = page(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: faults are what is tested; no one else uses the memory.
    unsafe {
        for length in [1, 2, 5, 8, 9, 16, 17, 32, 33, 100, 767, 768, 5000] {
            assert_eq!(
                copy(good, none, length),
                Err(Fault),
                "from, length {length}"
            );
            assert_eq!(copy(none, good, length), Err(Fault), "to, length {length}");
            assert_eq!(
                copy(read_only, good, length),
                Err(Fault),
                "read only, length {length}"
            );
            assert_eq!(copy(good, read_only, length), Ok(()), "length {length}");
        }
        for length in [33, 64, 5000] {
            assert_eq!(copy_blocks(good, none, length), Err(Fault));
            assert_eq!(copy_blocks(read_only, good, length), Err(Fault));
        }
        assert_eq!(load_descriptor(none), Err(Fault));
        assert_eq!(complete(read_only, 1, 2, 3), Err(Fault));
        assert_eq!(store_status(none, 1), Err(Fault));
        assert_eq!(store_status(good, 7), Ok(()));
    }
}

#[test]
fn a_descriptor_is_read_field_by_field() {
    install();
    let mut bytes = [0u64; 8];
    let raw = bytes.as_mut_ptr().cast::<u8>();
    // SAFETY: 64 bytes owned by the test.
    unsafe {
        raw.add(12).cast::<u16>().write(2);
        raw.add(14).cast::<u16>().write(5);
        raw.add(20).cast::<u32>().write(0xDEAD);
        raw.add(24).cast::<u32>().write(4096);
        raw.add(32).cast::<u64>().write(0x1234_5678_9ABC);
        raw.add(40).cast::<u32>().write(77);
        raw.add(44).cast::<u32>().write(4096);
        let image = load_descriptor(raw).unwrap();
        assert_eq!((image.seg_count, image.control), (2, 5));
        assert_eq!((image.immediate, image.length), (0xDEAD, 4096));
        let first = Segment {
            address: 0x1234_5678_9ABC,
            handle: 77,
            length: 4096,
        };
        assert_eq!(image.first, first);
        complete(raw, 9, 8, 1).unwrap();
        assert_eq!(raw.add(20).cast::<u32>().read(), 9);
        assert_eq!(raw.add(24).cast::<u32>().read(), 8);
        assert_eq!(raw.add(28).cast::<u32>().read(), 1);
    }
}

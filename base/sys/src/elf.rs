//! Whether a file is a whole shared library for this processor.
//!
//! The system's loader maps the ranges stated in the program headers and reads there. If the file is shorter,
//! because its copy is still in progress or a disk was full, this causes a SIGBUS in the program that loads
//! the library.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::{fmt, io};

/// Why a file cannot be loaded.
#[derive(Debug)]
pub enum Unfit {
    /// It cannot be read.
    Io(io::Error),
    /// It is not a shared library.
    Other,
    /// It is for programs of this many bits.
    Class(u32),
    /// It is for another processor.
    Machine,
    /// It is shorter than its headers state.
    Cut {
        /// Its size.
        bytes: u64,
        /// The minimum size.
        needed: u64,
    },
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Io(error) => error.fmt(f),
            Unfit::Other => f.write_str("it is not a shared library"),
            Unfit::Class(bits) => {
                let own = usize::BITS;
                write!(f, "is for {bits}-bit programs, and this one has {own} bits")
            }
            Unfit::Machine => f.write_str("it is for another processor"),
            Unfit::Cut { bytes, needed } => write!(
                f,
                "it is not complete: it has {bytes} bytes of at least {needed}; is it being copied, or was the disk full?"
            ),
        }
    }
}

impl std::error::Error for Unfit {}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Unfit {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Unfit::Other,
            _ => Unfit::Io(error),
        }
    }
}

/// `e_machine` of this processor; 0: unknown, so any is accepted.
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "x86") {
    3
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};
const SHARED: u16 = 3;
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;

/// Checks the headers of a file before it is passed to the system's loader.
///
/// # Errors
/// The loader would refuse the file, or crash.
pub fn check(path: &Path) -> Result<(), Unfit> {
    let file = crate::file::open(path).map_err(Unfit::Io)?;
    let bytes = file.metadata().map_err(Unfit::Io)?.len();
    let mut identity = [0; 16];
    file.read_exact_at(&mut identity, 0)?;
    let own_order = if cfg!(target_endian = "little") { 1 } else { 2 };
    if identity[..4] != *b"\x7FELF" {
        return Err(Unfit::Other);
    }
    match (identity[4], usize::BITS) {
        (1, 32) | (2, 64) => {}
        (1, _) => return Err(Unfit::Class(32)),
        (2, _) => return Err(Unfit::Class(64)),
        _ => return Err(Unfit::Other),
    }
    if identity[5] != own_order {
        return Err(Unfit::Machine);
    }
    headers(&file, bytes)
}

/// Offsets of fields, by word size: of the program headers in the file's header, and of the loaded range in
/// each of them.
struct Layout {
    table: u64,
    count: u64,
    header: usize,
    offset: usize,
    size: usize,
}

const LAYOUT: Layout = if usize::BITS == 64 {
    Layout {
        table: 32,
        count: 56,
        header: 56,
        offset: 8,
        size: 32,
    }
} else {
    Layout {
        table: 28,
        count: 44,
        header: 32,
        offset: 4,
        size: 16,
    }
};

fn headers(file: &File, bytes: u64) -> Result<(), Unfit> {
    let half = |at: u64| {
        let mut field = [0; 2];
        file.read_exact_at(&mut field, at)
            .map(|()| u16::from_ne_bytes(field))
    };
    let mut table = [0; size_of::<usize>()];
    file.read_exact_at(&mut table, LAYOUT.table)?;
    let table = usize::from_ne_bytes(table) as u64;
    let (kind, machine) = (half(16)?, half(18)?);
    if MACHINE != 0 && machine != MACHINE {
        return Err(Unfit::Machine);
    }
    let (size, count) = (half(LAYOUT.count - 2)?, half(LAYOUT.count)?);
    if kind != SHARED || usize::from(size) != LAYOUT.header || count == 0 {
        return Err(Unfit::Other);
    }
    let mut dynamic = false;
    for number in 0..u64::from(count) {
        let at = table.saturating_add(number * LAYOUT.header as u64);
        let mut header = [0; LAYOUT.header];
        let end = at.saturating_add(LAYOUT.header as u64);
        if end > bytes {
            return Err(Unfit::Cut { bytes, needed: end });
        }
        file.read_exact_at(&mut header, at)?;
        let word = |at: usize| {
            let mut field = [0; size_of::<usize>()];
            field.copy_from_slice(&header[at..at + size_of::<usize>()]);
            usize::from_ne_bytes(field) as u64
        };
        let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        dynamic |= kind == DYNAMIC;
        let needed = word(LAYOUT.offset).saturating_add(word(LAYOUT.size));
        if (kind == LOAD || kind == DYNAMIC) && needed > bytes {
            return Err(Unfit::Cut { bytes, needed });
        }
    }
    if dynamic { Ok(()) } else { Err(Unfit::Other) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// The C library of this process, which is certainly a shared library.
    fn shared_library() -> PathBuf {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let names = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        let mut libraries =
            names.filter(|name| name.contains("/libc.so") || name.contains("/libc-"));
        libraries.next().unwrap().into()
    }

    #[test]
    fn a_library_that_is_cut_anywhere_is_refused() {
        let whole = std::fs::read(shared_library()).unwrap();
        let path = std::env::temp_dir().join(format!("vipl-elf-{}", std::process::id()));
        let checked = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            check(&path)
        };
        checked(&whole).unwrap();
        // Up to the last field of the header that is read.
        for bytes in [0, 1, 15, 16, 40, LAYOUT.count as usize + 1] {
            assert!(
                matches!(checked(&whole[..bytes]), Err(Unfit::Other)),
                "{bytes}"
            );
        }
        for bytes in [64, 100, 1000, 4096, 20_000, 100_000, whole.len() / 2] {
            assert!(
                matches!(checked(&whole[..bytes]), Err(Unfit::Cut { .. })),
                "{bytes}"
            );
        }
        let mut other = whole.clone();
        other[18] ^= 0x40;
        assert!(matches!(checked(&other), Err(Unfit::Machine)));
        other[4] = 3 - other[4];
        assert!(matches!(checked(&other), Err(Unfit::Class(_))));
        assert!(matches!(checked(&vec![0; whole.len()]), Err(Unfit::Other)));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(check(&std::env::temp_dir()), Err(Unfit::Io(_))));
    }
}

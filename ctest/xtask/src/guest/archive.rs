//! The form of a first file system that the kernel unpacks: cpio, "newc".

/// An archive that grows.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    count: u32,
}

/// A folder, for all.
const FOLDER: u32 = 0o040_755;
/// A program or a file, for all.
const FILE: u32 = 0o100_755;

impl Archive {
    /// Adds a folder. Those above it have to be there already.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds a file that may be executed.
    pub(crate) fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.count += 1;
        let fields = [
            self.count,
            mode,
            0, // user
            0, // group
            1, // links
            0, // time
            content.len() as u32,
            0, // device
            0,
            0, // device that it is
            0,
            path.len() as u32 + 1,
            0, // checksum
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_the_trailer_is_last() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.file("bin/a", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..114], b"bin\0");
        let second = (110 + 4usize).next_multiple_of(4);
        assert_eq!(&bytes[second..second + 6], b"070701");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("12345") && text.trim_end_matches('\0').ends_with("TRAILER!!!"));
    }
}

//! Files named by users. Such a name may refer to a FIFO, whose open blocks for ever, or to an endless
//! device.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::fd::{Identity, above_standard};
use crate::stderr::without_signal;

/// Opens a regular file for reading, without blocking. Any other kind of file is an error that names the
/// kind.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let (file, about) = open_any(path)?;
    match other_kind(&about) {
        None => Ok(file),
        Some(kind) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it is {kind}, not a file"),
        )),
    }
}

/// The content of a regular file of at most this many bytes, or of `/dev/null`.
///
/// # Errors
/// As for [`open`], it has more bytes, or there is no memory for them.
pub fn read_small(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    if let Ok(about) = std::fs::metadata(path)
        && is_null(&about)
    {
        return Ok(Vec::new());
    }
    let file = open(path)?;
    let size = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let too_long = || {
        let text = format!("it has more than {bytes_max} bytes");
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    if size > bytes_max {
        return Err(too_long());
    }
    let mut content = Vec::new();
    // One byte more detects the end; `read_to_end` allocates in the same fallible way.
    content.try_reserve(size + 1)?;
    file.take(bytes_max as u64 + 1).read_to_end(&mut content)?;
    if content.len() > bytes_max {
        return Err(too_long());
    }
    Ok(content)
}

/// The same for text.
///
/// # Errors
/// As for [`read_small`], or it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: usize) -> io::Result<String> {
    String::from_utf8(read_small(path, bytes_max)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()))
}

/// Opens a log for appending, and creates it if necessary. It may be a device, or a FIFO with a reader; a
/// line that does not fit into the FIFO is lost, since logging never blocks.
///
/// # Errors
/// It cannot be opened; it is a FIFO without a reader.
pub fn open_log(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(mode)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path);
    match opened {
        Ok(file) => above_standard(file.into()),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
            let kind = std::fs::metadata(path).ok().as_ref().and_then(other_kind);
            let kind = kind.unwrap_or("a device");
            Err(io::Error::other(format!("it is {kind} that nobody reads")))
        }
        Err(error) => Err(error),
    }
}

/// Whether a file belongs to the user of this process and has no second name, which another user could have given it: what
/// others may find under a name in a folder that they may write, too.
pub fn is_of_this_user_alone(about: &Metadata) -> bool {
    // SAFETY: it has no arguments and cannot fail.
    about.uid() == unsafe { libc::geteuid() } && about.nlink() == 1
}

/// A file that is written in the application's process for as long as that lasts. The application may close all numbers, and
/// use ours for a file of its own: that is not written to.
#[derive(Debug)]
pub struct Output {
    file: ManuallyDrop<File>,
    identity: Option<Identity>,
}

impl Output {
    /// Moves a new file out of the numbers 0 to 2.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn new(file: File) -> io::Result<Output> {
        let fd = above_standard(OwnedFd::from(file))?;
        Ok(Output {
            identity: Identity::of(fd.as_raw_fd()),
            file: ManuallyDrop::new(File::from(fd)),
        })
    }

    /// Writes all of it, without a signal if the file may not become as large.
    ///
    /// # Errors
    /// Those of the kernel, or the application has closed the file.
    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes).map_err(|(_, error)| error)
    }

    /// The same for whole lines. If the file takes only a part of them, the line that is cut is taken back, unless another process has
    /// written behind it.
    ///
    /// # Errors
    /// As `write_all`.
    pub fn write_lines(&self, lines: &[u8]) -> io::Result<()> {
        self.write(lines).map_err(|(done, error)| {
            let whole = lines[..done].iter().rposition(|byte| *byte == b'\n');
            self.take_back(done - whole.map_or(0, |at| at + 1));
            error
        })
    }

    /// Writes all of it. An error comes with the bytes that were written before it.
    fn write(&self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        if !Identity::still(self.file.as_raw_fd(), self.identity) {
            return Err((0, io::Error::other("the program has closed it")));
        }
        let mut done = 0;
        without_signal(libc::SIGXFSZ, libc::EFBIG, || {
            while done < bytes.len() {
                match (&*self.file).write(&bytes[done..]) {
                    Ok(0) => return Err(libc::ENOSPC),
                    Ok(written) => done += written,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.raw_os_error().unwrap_or(0)),
                }
            }
            Ok(())
        })
        .map_err(|error| (done, io::Error::from_raw_os_error(error)))
    }

    /// Removes what this process has written last, if it is the end of the file.
    fn take_back(&self, bytes: usize) {
        let end = (&*self.file).stream_position();
        if let (1.., Ok(end), Ok(about)) = (bytes, end, self.file.metadata())
            && about.is_file()
            && about.len() == end
        {
            // If that fails, the file has half a line.
            let _ = self.file.set_len(end.saturating_sub(bytes as u64));
        }
    }
}

fn open_any(path: &Path) -> io::Result<(File, Metadata)> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let file = File::from(above_standard(file.into())?);
    let about = file.metadata()?;
    Ok((file, about))
}

/// The kind of a file that is not regular.
fn other_kind(about: &Metadata) -> Option<&'static str> {
    let kind = about.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a folder"),
        () if kind.is_fifo() => Some("a FIFO"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_char_device() => Some("a character device"),
        () => Some("a block device"),
    }
}

/// `/dev/null`, which means "nothing".
fn is_null(about: &Metadata) -> bool {
    about.file_type().is_char_device() && about.rdev() == libc::makedev(1, 3)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    use super::*;

    /// A folder that is removed with the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("vipl-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Folder(path)
        }

        fn fifo(&self) -> PathBuf {
            let path = self.0.join("fifo");
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: a valid string.
            assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_regular_files_and_nothing_are_read() {
        let folder = Folder::new("read");
        let path = folder.0.join("file");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_small(&path, 5).unwrap(), b"12345");
        let error = |path: &Path| read_small(path, 4).unwrap_err().to_string();
        assert_eq!(error(&path), "it has more than 4 bytes");
        assert_eq!(error(&folder.fifo()), "it is a FIFO, not a file");
        assert_eq!(error(&folder.0), "it is a folder, not a file");
        let zero = "it is a character device, not a file";
        assert_eq!(error(Path::new("/dev/zero")), zero);
        // The size is not known in advance.
        assert_eq!(
            error(Path::new("/proc/self/status")),
            "it has more than 4 bytes"
        );
        assert!(read_small(Path::new("/dev/null"), 0).unwrap().is_empty());
        let none = read_small(&folder.0.join("none"), 4).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_file_that_the_program_has_closed_is_not_written_to() {
        let folder = Folder::new("output");
        let (own, other) = (folder.0.join("own"), folder.0.join("other"));
        let output = Output::new(File::create(&own).unwrap()).unwrap();
        output.write_all(b"one").unwrap();
        let number = output.file.as_raw_fd();
        assert!(number > 2);
        let program = File::create(&other).unwrap();
        // SAFETY: the number is the output's, which does not close it.
        assert_eq!(unsafe { libc::dup2(program.as_raw_fd(), number) }, number);
        let error = output.write_all(b"two").unwrap_err().to_string();
        assert_eq!(error, "the program has closed it");
        let text = |path| std::fs::read_to_string(path).unwrap();
        assert_eq!((text(&own), text(&other)), ("one".into(), String::new()));
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }

    /// In a child, since the limit is the process's.
    #[test]
    fn a_file_that_takes_no_more_ends_with_a_whole_line() {
        let folder = Folder::new("lines");
        let path = folder.0.join("lines");
        let open = || OpenOptions::new().append(true).create(true).open(&path);
        let file = Output::new(open().unwrap()).unwrap();
        // SAFETY: the child writes to files and ends; it takes no lock of this process.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let limit = libc::rlimit {
                    rlim_cur: 10,
                    rlim_max: 10,
                };
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
                let first = file.write_lines(b"one\ntwo\nthree\n");
                let second = file.write_lines(b"four\n");
                let fits = file.write_lines(b"5\n");
                let failed = |result: io::Result<()>| {
                    result.is_err_and(|error| error.raw_os_error() == Some(libc::EFBIG))
                };
                let good = failed(first) && failed(second) && fits.is_ok();
                libc::_exit(i32::from(!good));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert_eq!(status, 0);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n5\n");
        // What another process has written behind it stays.
        file.write_lines(b"x").unwrap();
        std::fs::write(&path, "one\nand more of others").unwrap();
        file.take_back(1);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "one\nand more of others");
    }

    #[test]
    fn a_log_waits_for_no_reader() {
        let folder = Folder::new("log");
        let path = folder.fifo();
        let refused = open_log(&path, 0o600).unwrap_err().to_string();
        assert_eq!(refused, "it is a FIFO that nobody reads");
        let _reader = open_any(&path).unwrap();
        let mut log = File::from(open_log(&path, 0o600).unwrap());
        let piece = [b'x'; 4096];
        while log.write_all(&piece).is_ok() {}
        assert!(open_log(Path::new("/dev/null"), 0o600).is_ok());
    }
}

//! The layer `record`: writes a run of a program to a file, which `vip_replay` makes again.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use vipl_abi::VIP_RETURN;
use vipl_plugin_sdk::Status;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::layer::{Call, Host, Layer, Local, Outcome};
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_sys::file::{Output, is_of_this_user_alone};
use vipl_sys::{clock, thread};

mod encode;

/// Words of `Local`: when the call began, and the text of what it posts, a boxed string.
const BEGAN: usize = 0;
const POSTED: usize = 1;

/// Bytes that are written together.
const BUFFER_BYTES: usize = 64 << 10;

/// The file, and what is about to be written.
struct Lines {
    file: Output,
    buffer: Vec<u8>,
}

/// The layer.
pub struct Record {
    host: Host,
    /// `None` after an error.
    file: Mutex<Option<Lines>>,
    with_bytes: bool,
}

impl Layer for Record {
    const NAME: &'static CStr = c"record";
    const VERSION: &'static CStr = vipl_plugin_sdk::version!();
    const SETTINGS: &'static [Setting] = &[
        settings::text(
            c"file",
            c"path",
            c"file of each process; %p is its id, which is appended if it is not in the name",
        ),
        settings::boolean(c"bytes", false, c"record what is sent, not only how much"),
    ];

    fn new(host: Host) -> Result<Record, Status> {
        let name = host.value(Self::NAME, c"file").unwrap_or_default();
        let pid = std::process::id();
        let file = create(&name, pid).map_err(|error| {
            host.log(
                VIPL_LOG_ERROR,
                &format!("record: nothing is recorded: {error}"),
            );
            Status::Resource
        })?;
        let record = Record {
            host,
            file: Mutex::new(Some(Lines {
                file,
                buffer: Vec::new(),
            })),
            with_bytes: settings::truth(Self::NAME, c"bytes"),
        };
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // The library's own setting: `vip_replay` needs the same rules.
        let strict = match settings::truth(Self::NAME, c"strict") {
            true => " strict",
            false => "",
        };
        // A file with the word `ends` has a line for the end of its process.
        record.write(
            &format!("vipl-record 1 {pid} {} ends{strict}\n", boot.trim()),
            true,
        );
        Ok(record)
    }

    fn before(&self, call: &Call<'_>, local: &mut Local) -> Option<VIP_RETURN> {
        if matches!(call.function(), VIPL_CALL_POST_SEND | VIPL_CALL_POST_RECV) {
            // The descriptor and its data may change as soon as it is posted.
            let mut text = String::new();
            encode::descriptor(call, self.with_bytes, &mut text);
            local[POSTED] = Box::into_raw(Box::new(text)).expose_provenance() as u64;
        }
        local[BEGAN] = clock::now_ns();
        None
    }

    fn after(&self, call: &Call<'_>, local: &mut Local, result: Outcome) {
        let ended = clock::now_ns();
        let posted = std::ptr::with_exposed_provenance_mut::<String>(local[POSTED] as usize);
        // SAFETY: NULL, or from `before` of this call.
        let posted = (!posted.is_null()).then(|| unsafe { Box::from_raw(posted) });
        // A poll that finds nothing is no event of the run.
        if result.0 == Some(VIP_RETURN::VIP_NOT_DONE) {
            return;
        }
        let done = result.has_outputs();
        let name = call.name().to_string_lossy();
        let mut line = String::new();
        let _ = write!(
            line,
            "{} {} {ended} {name} {}",
            thread::id(),
            local[BEGAN],
            encode::result(result)
        );
        encode::arguments_of(call, done, &mut line);
        if let Some(posted) = posted {
            line.push_str(&posted);
        }
        let vi = match call.function() {
            VIPL_CALL_CONNECT_ACCEPT => Some(call.argument(1)),
            VIPL_CALL_CONNECT_REQUEST
            | VIPL_CALL_CONNECT_PEER_DONE
            | VIPL_CALL_CONNECT_PEER_WAIT => Some(call.argument(0)),
            _ => None,
        };
        if let Some(connection) = vi.filter(|_| done).and_then(|vi| self.host.connection(vi)) {
            let _ = write!(line, " connection={:#x}/{}", connection.id, connection.side);
        }
        line.push('\n');
        let is_data = matches!(
            call.function(),
            VIPL_CALL_POST_SEND..=VIPL_CALL_RECV_WAIT | VIPL_CALL_CQ_DONE | VIPL_CALL_CQ_WAIT
        );
        self.write(&line, !is_data);
    }

    fn process_ends(&self) {
        if let Ok(mut file) = self.file.try_lock() {
            self.put(&mut file, "vipl-record end\n", true);
        }
    }
}

impl Record {
    /// Appends a line.
    fn write(&self, line: &str, at_once: bool) {
        if let Ok(mut file) = self.file.lock() {
            self.put(&mut file, line, at_once);
        }
    }

    /// The same; after an error nothing more, with one line in the log.
    fn put(&self, file: &mut Option<Lines>, line: &str, at_once: bool) {
        let Some(Lines { file: to, buffer }) = file.as_mut() else {
            return;
        };
        buffer.extend_from_slice(line.as_bytes());
        if !at_once && buffer.len() < BUFFER_BYTES {
            return;
        }
        match to.write_lines(buffer) {
            Ok(()) => buffer.clear(),
            Err(error) => {
                // What is buffered cannot be written either.
                *file = None;
                let text = format!("record: the file cannot be written any more: {error}");
                self.host.log(VIPL_LOG_WARN, &text);
            }
        }
    }
}

/// Makes the file of this process.
fn create(name: &str, pid: u32) -> Result<Output, String> {
    if name.is_empty() {
        return Err("VIPL_RECORD_FILE names no file".to_owned());
    }
    let name = match name.contains("%p") {
        true => name.replace("%p", &pid.to_string()),
        false => format!("{name}.{pid}"),
    };
    open(Path::new(&name))
        .and_then(|file| Output::new(file).map_err(|error| error.to_string()))
        .map_err(|error| format!("{name}: {error}"))
}

/// Makes an empty file. Others may write in its folder and know the name beforehand: what they put there is left alone.
fn open(path: &Path) -> Result<File, String> {
    let mut options = File::options();
    options
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(|error| error.to_string()),
    }
    // A run whose process had the same id.
    let file = options
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => "it is a symbolic link, which is not followed".to_owned(),
            _ => error.to_string(),
        })?;
    let about = file.metadata().map_err(|error| error.to_string())?;
    if !about.is_file() || !is_of_this_user_alone(&about) {
        return Err("it exists and is no file of this user's alone".to_owned());
    }
    file.set_len(0).map_err(|error| error.to_string())?;
    Ok(file)
}

vipl_plugin_sdk::layer!(Record);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_put_in_the_place_of_the_file_is_left_alone() {
        let dir = std::env::temp_dir().join(format!("vipl-record-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let precious = dir.join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, dir.join("link.7")).unwrap();
        std::os::unix::fs::symlink(dir.join("new"), dir.join("dangling.7")).unwrap();
        std::fs::hard_link(&precious, dir.join("hard.7")).unwrap();
        let make = |name: &str| create(dir.join(name).to_str().unwrap(), 7);
        for (name, said) in [
            ("link", "it is a symbolic link, which is not followed"),
            (
                "dangling.%p",
                "it is a symbolic link, which is not followed",
            ),
            ("hard", "no file of this user's alone"),
        ] {
            let error = make(name).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
        assert!(!dir.join("new").exists());
        // A file of ours is written from its beginning.
        for _ in 0..2 {
            make("run").unwrap().write_all(b"text").unwrap();
            assert_eq!(std::fs::read_to_string(dir.join("run.7")).unwrap(), "text");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! Files of the layer `record`: one call a line (docs/LAYERS.md).

use std::collections::HashMap;
use std::path::Path;

use vipl_client::raw::abi::{VIP_CONTROL_OP_MASK, VIP_CONTROL_OP_RDMAREAD};
use vipl_sys::file::read_small;
use vipl_sys::text::one_line;

use crate::{Error, Result};

/// Characters that are shown of a text of the file.
const SHOWN_MAX: usize = 80;

/// A text of the file as messages show it: short, and without characters that affect the terminal.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", one_line(&text[..end])),
        None => one_line(text).into_owned(),
    }
}

/// One call of the recorded run.
#[derive(Debug)]
pub(super) struct Call {
    /// Line of the file, from 1 on.
    pub(super) line: usize,
    pub(super) thread: u64,
    pub(super) began: u64,
    pub(super) ended: u64,
    pub(super) name: String,
    pub(super) result: String,
    /// A request for a peer whose time was up then, as a later call says.
    pub(super) expires: bool,
    /// A wait whose time was up while another call took something from the same place.
    pub(super) is_beside: bool,
    values: HashMap<String, String>,
}

impl Call {
    fn parse(line: usize, text: &str) -> Option<Call> {
        let mut words = text.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (thread, began, ended) = (number()?, number()?, number()?);
        let (name, result) = (words.next()?.to_owned(), words.next()?.to_owned());
        let values = words.map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        Some(Call {
            line,
            thread,
            began,
            ended,
            name,
            result,
            expires: false,
            is_beside: false,
            values: values.collect::<Option<_>>()?,
        })
    }

    /// A value as it stands there.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A number; 0 if there is none.
    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).and_then(number).unwrap_or(0)
    }

    /// Numbers with `:` between them; `None` if the program gave NULL.
    pub(super) fn numbers(&self, name: &str) -> Option<Vec<u64>> {
        self.text(name)?.split(':').map(number).collect()
    }

    /// The segments of a descriptor: address, handle, length.
    pub(super) fn segments(&self) -> Vec<[u64; 3]> {
        let all = self.text("segments").unwrap_or_default().split(',');
        all.filter_map(|one| {
            let numbers: Option<Vec<u64>> = one.split(':').map(number).collect();
            numbers?.try_into().ok()
        })
        .collect()
    }

    /// The number of the connection that the call made, and its side.
    pub(super) fn connection(&self) -> Option<(u64, u64)> {
        let (id, side) = self.text("connection")?.split_once('/')?;
        Some((number(id)?, number(side)?))
    }

    /// Bytes.
    pub(super) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        hexadecimal(self.text(name)?)
    }

    /// The host and the discriminator of an address.
    pub(super) fn address(&self, name: &str) -> Option<(Vec<u8>, Vec<u8>)> {
        let (host, point) = self.text(name)?.split_once('/')?;
        Some((hexadecimal(host)?, hexadecimal(point)?))
    }
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

/// One recorded process.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) name: String,
    /// The host's start: files of one start have one clock.
    pub(super) boot: String,
    /// The process kept to the strict mode.
    pub(super) strict: bool,
    /// Its process was killed or called `_exit`, or the file took no more: calls are missing.
    pub(super) is_cut: bool,
    /// In the order in which they ended.
    pub(super) calls: Vec<Call>,
}

/// What a file begins with.
const MARK: &str = "vipl-record ";

fn no_recording(name: &str, bytes: &[u8]) -> Error {
    let what = match bytes.starts_with(MARK.as_bytes()) {
        true => "a file of another version of the layer record",
        false => "no file of the layer record",
    };
    let head = bytes.split(|byte| *byte == b'\n').next().unwrap_or(bytes);
    // More bytes than are shown of their text.
    let head = String::from_utf8_lossy(&head[..head.len().min(5 * SHOWN_MAX)]);
    let head = shown(&head);
    Error::Usage(format!("{name}: {what}: it begins with \"{head}\""))
}

fn no_call(name: &str, line: usize) -> Error {
    Error::Usage(format!("{name}:{line}: this is no call"))
}

/// The line that a process writes when it ends.
const END: &str = "vipl-record end";

impl Recording {
    /// Reads a regular file of so many bytes at most.
    ///
    /// # Errors
    /// It cannot be read, or a line is none.
    pub(super) fn read(path: &Path, most: u64) -> Result<Recording> {
        let name = one_line(&path.to_string_lossy()).into_owned();
        let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
        let bytes = read_small(path, most).map_err(|e| Error::Usage(format!("{name}: {e}")))?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Recording::parse(&name, text),
            // A line says more than the place of a byte: what is not text is no recording, or no call of one.
            Err(error) => {
                let whole = bytes[..error.valid_up_to()].iter();
                let line = whole.filter(|byte| **byte == b'\n').count() + 1;
                Err(match bytes.starts_with(MARK.as_bytes()) && line > 1 {
                    true => no_call(&name, line),
                    false => no_recording(&name, &bytes),
                })
            }
        }
    }

    pub(super) fn parse(name: &str, text: &str) -> Result<Recording> {
        let mut lines = text.lines().enumerate();
        let head = lines.next().map_or("", |(_, head)| head);
        let ["vipl-record", "1", _, boot, ref more @ ..] = head.split(' ').collect::<Vec<_>>()[..]
        else {
            return Err(no_recording(name, text.as_bytes()));
        };
        // The last line of a process that was killed may be short.
        let whole = text.ends_with('\n');
        let count = text.lines().count();
        let mut calls = Vec::new();
        let mut has_end = !more.contains(&"ends");
        for (place, line) in lines {
            match Call::parse(place + 1, line) {
                None if line == END => has_end = true,
                Some(call) => calls.push(call),
                None if place + 1 == count && !whole => {}
                None => return Err(no_call(name, place + 1)),
            }
        }
        mark_expired(&mut calls);
        Ok(Recording {
            name: name.to_owned(),
            boot: boot.to_owned(),
            strict: more.contains(&"strict"),
            is_cut: !has_end || !whole,
            calls,
        })
    }

    /// When its first call began and its last one ended; `None`: it has none.
    pub(super) fn time(&self) -> Option<(u64, u64)> {
        let began = self.calls.iter().map(|call| call.began).min()?;
        let ended = self.calls.iter().map(|call| call.ended).max()?;
        Some((began, ended))
    }

    fn sends(&self) -> impl Iterator<Item = &Call> {
        let sends = self.calls.iter().filter(|call| call.name == "VipPostSend");
        sends.filter(|call| call.result == "VIP_SUCCESS")
    }

    /// The longest message that its calls send.
    pub(super) fn longest_send(&self) -> u64 {
        let lengths = self.sends().map(|call| call.number("length"));
        lengths.max().unwrap_or(0)
    }

    /// Whether its calls post RDMA Reads.
    pub(super) fn reads(&self) -> bool {
        let mut operations = self.sends().map(|call| call.number("control") as u16);
        operations.any(|control| control & VIP_CONTROL_OP_MASK == VIP_CONTROL_OP_RDMAREAD)
    }
}

/// Marks the requests for a peer whose time was up then.
fn mark_expired(calls: &mut [Call]) {
    let mut requests: HashMap<u64, usize> = HashMap::new();
    for place in 0..calls.len() {
        let vi = calls[place].number("ViHandle");
        match calls[place].name.as_str() {
            "VipConnectPeerRequest" => {
                requests.insert(vi, place);
            }
            "VipConnectPeerDone" | "VipConnectPeerWait" if calls[place].result == "VIP_TIMEOUT" => {
                if let Some(request) = requests.get(&vi) {
                    calls[*request].expires = true;
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_read() {
        let text = "vipl-record 1 77 boot strict\n\
                    5 10 20 VipPostSend VIP_SUCCESS ViHandle=0x2 segments=0x1000:0x5:0x8,0x2000:0x6:0x1 data=0aff\n\
                    5 30 40 VipConnectWait VIP_SUCCESS LocalAddr=0102/61\n5 50 6";
        let recording = Recording::parse("r", text).unwrap();
        assert_eq!(
            (recording.boot.as_str(), recording.calls.len()),
            ("boot", 2)
        );
        assert!(recording.strict && recording.is_cut);
        for (text, is_cut) in [
            ("vipl-record 1 77 boot\n", false),
            ("vipl-record 1 77 boot ends\n", true),
            (
                "vipl-record 1 77 boot ends strict\n1 1 2 VipCloseNic VIP_SUCCESS\n",
                true,
            ),
            (
                "vipl-record 1 77 boot ends\nvipl-record end\n1 1 2 VipCloseNic VIP_SUCCESS\n",
                false,
            ),
        ] {
            assert_eq!(
                Recording::parse("r", text).unwrap().is_cut,
                is_cut,
                "{text}"
            );
        }
        assert_eq!(recording.time(), Some((10, 40)));
        assert!(
            !Recording::parse("r", "vipl-record 1 77 boot\n")
                .unwrap()
                .strict
        );
        let post = &recording.calls[0];
        assert_eq!(post.segments(), [[0x1000, 5, 8], [0x2000, 6, 1]]);
        assert_eq!(post.bytes("data").unwrap(), [10, 255]);
        assert_eq!(recording.calls[1].address("LocalAddr").unwrap().1, b"a");
        for (text, said) in [
            ("x", "r: no file of the layer record: it begins with \"x\""),
            ("", "r: no file of the layer record"),
            ("vipl-record 2 7 b\n", "r: a file of another version of"),
            ("vipl-record 1 7 b\nnonsense\n", "r:2"),
        ] {
            let error = Recording::parse("r", text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_request_expires_if_a_later_call_says_so() {
        let text = "vipl-record 1 77 boot\n\
                    1 1 2 VipConnectPeerRequest VIP_SUCCESS ViHandle=0x1\n1 3 4 VipConnectPeerDone VIP_SUCCESS ViHandle=0x1\n\
                    1 5 6 VipConnectPeerRequest VIP_SUCCESS ViHandle=0x1\n1 7 8 VipConnectPeerWait VIP_TIMEOUT ViHandle=0x1\n\
                    1 9 10 VipConnectPeerDone VIP_TIMEOUT ViHandle=0x2\n";
        let recording = Recording::parse("r", text).unwrap();
        let expires: Vec<bool> = recording.calls.iter().map(|call| call.expires).collect();
        assert_eq!(expires, [false, false, true, false, false]);
    }

    #[test]
    fn only_a_file_of_bounded_size_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (fifo, file) = (dir.path().join("fifo"), dir.path().join("\x1b[31mname"));
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(&file, "x".repeat(100)).unwrap();
        for (path, said) in [
            (fifo.as_path(), "it is a FIFO, not a file"),
            (
                Path::new("/dev/zero"),
                "it is a character device, not a file",
            ),
            (dir.path(), "it is a folder, not a file"),
            (file.as_path(), "\\u001b[31mname: it has more than 99 bytes"),
        ] {
            let error = Recording::read(path, 99).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn what_is_no_text_is_no_recording() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("status");
        for (bytes, said) in [
            (
                &b"VIPK\x01\0\0\0\xff\xfe"[..],
                "status: no file of the layer record: it begins with \"VIPK",
            ),
            (&[0xff; 5000], "status: no file of the layer record"),
            (
                b"vipl-record 1 \xff b\n",
                "status: a file of another version",
            ),
            (
                b"vipl-record 1 7 b\n1 1 2 VipCloseNic VIP_SUCCESS\n\xff\n",
                "status:3: this is no call",
            ),
        ] {
            std::fs::write(&file, bytes).unwrap();
            let error = Recording::read(&file, 1 << 20).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains("utf-8"), "{error}");
            assert!(error.len() < 1000, "{error}");
        }
    }

    #[test]
    fn no_character_of_a_file_affects_the_terminal() {
        let head = format!("vipl-record 2 \x1b[31m\u{202e}{}\n", "X".repeat(1000));
        let error = Recording::parse("r", &head).unwrap_err().to_string();
        assert!(error.contains("\\u001b[31m\\u202eX"), "{error}");
        assert!(error.len() < 300, "{error}");
        assert_eq!(shown("a\tb"), "a\\tb");
    }
}

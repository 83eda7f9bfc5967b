//! What a terminal sends, as the keys that the screen knows.
//!
//! The reader of crossterm is not used. It reads on, without end, at the end of file and after errors, and waits without limit for the
//! rest of a sequence.

#![forbid(unsafe_code)]

use ratatui::crossterm::event::KeyCode;

const ESC: u8 = 0x1b;
/// No key has a longer sequence.
const SEQUENCE_MAX: usize = 32;

/// Bytes that have come and were not taken as keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
}

impl Keys {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next key. Sequences and control characters that the screen does not know are passed over.
    pub(super) fn take(&mut self) -> Option<KeyCode> {
        loop {
            let (key, length) = first(&self.bytes)?;
            self.bytes.drain(..length);
            if key.is_some() {
                return key;
            }
        }
    }

    /// After [`Keys::take`] has found none: whether there is the beginning of one.
    pub(super) fn has_begun(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// The rest does not come. ESC alone is a key; other beginnings are dropped.
    pub(super) fn give_up(&mut self) -> Option<KeyCode> {
        let is_escape = self.bytes == [ESC];
        self.bytes.clear();
        is_escape.then_some(KeyCode::Esc)
    }
}

/// The key at the beginning, if it is one, and its bytes; None if more must come.
fn first(bytes: &[u8]) -> Option<(Option<KeyCode>, usize)> {
    let key = match *bytes.first()? {
        b'\r' | b'\n' => KeyCode::Enter,
        b'\t' => KeyCode::Tab,
        0x08 | 0x7f => KeyCode::Backspace,
        ESC => return sequence(bytes),
        _ => return character(bytes),
    };
    Some((Some(key), 1))
}

/// The same of bytes that begin with ESC.
fn sequence(bytes: &[u8]) -> Option<(Option<KeyCode>, usize)> {
    if !matches!(bytes.get(1)?, b'[' | b'O') {
        // The key itself, and another one after it.
        return Some((Some(KeyCode::Esc), 1));
    }
    let rest = &bytes[2..];
    let parameters = rest
        .iter()
        .take(SEQUENCE_MAX + 1)
        .take_while(|byte| matches!(byte, b' '..=b'?'))
        .count();
    if parameters > SEQUENCE_MAX {
        return Some((None, 2 + parameters));
    }
    let last = *rest.get(parameters)?;
    let key = match (last, &rest[..parameters]) {
        (b'A', _) => Some(KeyCode::Up),
        (b'B', _) => Some(KeyCode::Down),
        (b'C', _) => Some(KeyCode::Right),
        (b'D', _) => Some(KeyCode::Left),
        (b'Z', _) => Some(KeyCode::BackTab),
        (b'~', [b'5'] | [b'5', b';', ..]) => Some(KeyCode::PageUp),
        (b'~', [b'6'] | [b'6', b';', ..]) => Some(KeyCode::PageDown),
        // F1 to F5 of the console of Linux, which have one character more.
        (b'[', []) => return rest.get(1).map(|_| (None, 4)),
        _ => None,
    };
    // A control character is no part of it.
    let length = 2 + parameters + usize::from(!last.is_ascii_control());
    Some((key, length))
}

/// The same of a character.
fn character(bytes: &[u8]) -> Option<(Option<KeyCode>, usize)> {
    let bytes = &bytes[..bytes.len().min(4)];
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => match error.valid_up_to() {
            0 => return error.error_len().map(|length| (None, length)),
            valid => std::str::from_utf8(&bytes[..valid]).ok()?,
        },
    };
    let one = text.chars().next()?;
    let key = (!one.is_control()).then_some(KeyCode::Char(one));
    Some((key, one.len_utf8()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys that these bytes are, if they come in parts of this length.
    fn keys(bytes: &[u8], length: usize) -> Vec<KeyCode> {
        let (mut keys, mut found) = (Keys::default(), Vec::new());
        for part in bytes.chunks(length) {
            keys.add(part);
            found.extend(std::iter::from_fn(|| keys.take()));
        }
        found.extend(keys.give_up());
        assert!(!keys.has_begun());
        found
    }

    #[test]
    fn keys_are_known_however_they_are_cut() {
        use KeyCode::{BackTab, Backspace, Char, Down, Enter, Esc, Left, PageDown, PageUp};
        use KeyCode::{Right, Tab, Up};
        let cases: [(&[u8], &[KeyCode]); 14] = [
            (b"q?7", &[Char('q'), Char('?'), Char('7')]),
            (b"\r\n\t", &[Enter, Enter, Tab]),
            (b"\x7f\x08", &[Backspace, Backspace]),
            (b"\x1b[A\x1b[B\x1b[C\x1b[D", &[Up, Down, Right, Left]),
            (b"\x1bOA\x1bOB", &[Up, Down]),
            (b"\x1b[1;5A\x1b[Z", &[Up, BackTab]),
            (b"\x1b[5~\x1b[6~\x1b[6;2~", &[PageUp, PageDown, PageDown]),
            // Home, F5, F6, F1 of two kinds, a report of the mouse, a long one.
            (
                b"\x1b[H\x1b[15~\x1b[17~\x1bOP\x1b[[A\x1b[<0;1;1My",
                &[Char('y')],
            ),
            (
                b"\x1b[1111111111111111111111111111111111Ay",
                &[Char('1'), Char('A'), Char('y')],
            ),
            // Broken off by another one.
            (b"\x1b[1;\x1b[Ax", &[Up, Char('x')]),
            (b"\x1bq\x1b\x1b", &[Esc, Char('q'), Esc, Esc]),
            ("ä€𝄞".as_bytes(), &[Char('ä'), Char('€'), Char('𝄞')]),
            // Control characters, and what is no UTF-8.
            (b"\x00\x03\x0c\xff\xc3(\x80\xc2\x9b", &[Char('(')]),
            (b"a\xe2\x82", &[Char('a')]),
        ];
        for (bytes, expected) in cases {
            for length in 1..=bytes.len() {
                let found = keys(bytes, length);
                assert_eq!(found, expected, "{} by {length}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn any_bytes_end() {
        let mut state = 1_u32;
        for _ in 0..10_000 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"\x1b[O;5~A\xc3\xa4q"[(state >> 16) as usize % 10]
                })
                .collect();
            assert_eq!(
                keys(&bytes, 40),
                keys(&bytes, 1),
                "{}",
                bytes.escape_ascii()
            );
        }
    }
}

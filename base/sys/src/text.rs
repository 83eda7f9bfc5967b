//! Escapes control characters of untrusted text before it reaches a terminal or a log.
//!
//! Names of clients, files, peers and settings may hold control characters: a line feed forges a line of the
//! log, ESC controls the terminal, a direction override disguises the text. Such characters are replaced by
//! escapes that JSON, C and Python know (`\n`, `\u001b`). Every other character, a backslash among them,
//! stays as it is.

use std::borrow::Cow;
use std::fmt::Write;

/// The text in one line: for a line of a log, or a cell of a table.
#[must_use]
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_command)
}

/// The text with its line feeds: for the output of a tool. A JSON document stays valid, with the same
/// content.
#[must_use]
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| character != '\n' && is_command(character))
}

/// Whether a character affects a terminal or the surrounding text.
fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            // Writing direction.
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Ends of lines and paragraphs.
            | '\u{2028}' | '\u{2029}'
            // Invisible characters: the byte order mark, deprecated controls, annotations, tags.
            | '\u{feff}' | '\u{206a}'..='\u{206f}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

fn escaped(text: &str, must: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&must) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            _ if !must(character) => safe.push(character),
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            _ => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(safe, "\\u{unit:04x}");
                }
            }
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_terminals_are_escaped() {
        for (text, shown) in [
            ("\x1b[2Jgone\x07", "\\u001b[2Jgone\\u0007"),
            ("a\r\nvipkad[1] error", "a\\r\\nvipkad[1] error"),
            ("\u{9b}31m\u{7f}\0\t", "\\u009b31m\\u007f\\u0000\\t"),
            ("user\u{202e}txt.exe\u{2066}", "user\\u202etxt.exe\\u2066"),
            ("\u{feff}\u{2028}\u{e0041}", "\\ufeff\\u2028\\udb40\\udc41"),
        ] {
            assert_eq!(one_line(text), shown);
        }
    }

    #[test]
    fn every_other_text_is_left_alone() {
        for text in ["", "/dev/via_lo", "Größe \"12 µs\" 日本語 עברית 👩‍👧 C:\\new"]
        {
            assert!(matches!(one_line(text), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn what_a_tool_prints_keeps_its_lines() {
        assert_eq!(lines("a\n\x1bb\r\n"), "a\n\\u001bb\\r\n");
        assert!(matches!(lines("a\nb\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn no_command_is_left_whatever_the_text() {
        let all: String = (char::MIN..=char::MAX).collect();
        assert!(!one_line(&all).contains(is_command));
        let left = lines(&all);
        assert_eq!(
            left.chars().filter(|c| is_command(*c)).collect::<String>(),
            "\n"
        );
    }
}

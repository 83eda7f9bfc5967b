//! Text of JSON, written without the formatting of the standard library, which takes longer than the calls that are traced.

/// Bytes under way to the file.
#[derive(Default)]
pub(crate) struct Text(pub(crate) Vec<u8>);

impl Text {
    #[inline(always)]
    pub(crate) fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn decimal(&mut self, number: u64) {
        let mut digits = [0; 20];
        let mut at = digits.len();
        let mut rest = number;
        loop {
            at -= 1;
            digits[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.0.extend_from_slice(&digits[at..]);
    }

    /// A number as text, `"0x12"`: numbers of JSON have 53 bits.
    pub(crate) fn hex(&mut self, number: u64) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 20];
        let mut at = text.len() - 1;
        text[at] = b'"';
        let mut rest = number;
        loop {
            at -= 1;
            text[at] = DIGITS[(rest & 15) as usize];
            rest >>= 4;
            if rest == 0 {
                break;
            }
        }
        text[at - 3..at].copy_from_slice(b"\"0x");
        self.0.extend_from_slice(&text[at - 3..]);
    }

    /// Microseconds with three decimals.
    pub(crate) fn micros(&mut self, ns: u64) {
        self.decimal(ns / 1000);
        let rest = ns % 1000;
        let digit = |unit: u64| b'0' + (rest / unit % 10) as u8;
        self.0
            .extend_from_slice(&[b'.', digit(100), digit(10), digit(1)]);
    }

    /// Bytes of the application as a text.
    pub(crate) fn quoted(&mut self, bytes: &[u8]) {
        self.0.push(b'"');
        for byte in bytes {
            match byte {
                b'"' | b'\\' => self.0.extend_from_slice(&[b'\\', *byte]),
                b' '..=b'~' => self.0.push(*byte),
                other => self.put(&format!("\\u{:04x}", other)),
            }
        }
        self.0.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(make: impl Fn(&mut Text)) -> String {
        let mut text = Text::default();
        make(&mut text);
        String::from_utf8(text.0).unwrap()
    }

    #[test]
    fn numbers_are_whole() {
        for (number, decimal, hex) in [
            (0, "0", "\"0x0\""),
            (1234, "1234", "\"0x4d2\""),
            (u64::MAX, "18446744073709551615", "\"0xffffffffffffffff\""),
        ] {
            assert_eq!(made(|text| text.decimal(number)), decimal);
            assert_eq!(made(|text| text.hex(number)), hex);
        }
        assert_eq!(made(|text| text.micros(1_002_003)), "1002.003");
        assert_eq!(made(|text| text.quoted(b"a\"\n")), "\"a\\\"\\u000a\"");
    }
}

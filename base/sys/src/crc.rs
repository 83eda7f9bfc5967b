//! CRC32C (Castagnoli), the checksum of every frame: by the processor's CRC instruction if there is one, and for long
//! frames by carry-less multiplication.

#[cfg(target_arch = "x86_64")]
mod folding;

/// The CRC32C of some bytes.
#[inline(always)]
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        if let Some(state) = folding::fold(!0, bytes) {
            return !state;
        }
        // SAFETY: the processor has the instruction.
        return unsafe { !hardware(!0, bytes) };
    }
    #[cfg(target_arch = "x86")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { !words(!0, bytes) };
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("crc") {
        // SAFETY: the processor has the instruction.
        return unsafe { !words(!0, bytes) };
    }
    portable(bytes)
}

/// The CRC state after `bytes`, four bytes at a time, as wide as a register of i386.
#[cfg(target_arch = "x86")]
#[target_feature(enable = "sse4.2")]
fn words(state: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86::{_mm_crc32_u8, _mm_crc32_u32};

    let (words, rest) = bytes.as_chunks();
    let step = |crc, word: &[u8; 4]| _mm_crc32_u32(crc, u32::from_le_bytes(*word));
    let crc = words.iter().fold(state, step);
    rest.iter().fold(crc, |crc, byte| _mm_crc32_u8(crc, *byte))
}

/// The CRC state after `bytes`, eight bytes at a time.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "crc")]
fn words(state: u32, bytes: &[u8]) -> u32 {
    use std::arch::aarch64::{__crc32cb, __crc32cd};

    let (words, rest) = bytes.as_chunks();
    let step = |crc, word: &[u8; 8]| __crc32cd(crc, u64::from_le_bytes(*word));
    let crc = words.iter().fold(state, step);
    rest.iter().fold(crc, |crc, byte| __crc32cb(crc, *byte))
}

/// The CRC state after `bytes`, eight bytes at a time. Three runs are computed side by side: the instruction has a
/// latency of three cycles and a throughput of one per cycle.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn hardware(state: u32, bytes: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};

    let word = |bytes: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let mut crc = u64::from(state);
    let mut rest = bytes;
    while rest.len() >= 3 * RUN {
        let (run, behind) = rest.split_at(3 * RUN);
        let (mut second, mut third) = (0, 0);
        for at in (0..RUN).step_by(8) {
            crc = _mm_crc32_u64(crc, word(run, at));
            second = _mm_crc32_u64(second, word(run, RUN + at));
            third = _mm_crc32_u64(third, word(run, 2 * RUN + at));
        }
        crc = u64::from(behind_run(crc as u32)) ^ second;
        crc = u64::from(behind_run(crc as u32)) ^ third;
        rest = behind;
    }
    let mut words = rest.chunks_exact(8);
    for chunk in &mut words {
        crc = _mm_crc32_u64(crc, word(chunk, 0));
    }
    let mut crc = crc as u32;
    for byte in words.remainder() {
        crc = _mm_crc32_u8(crc, *byte);
    }
    crc
}

/// Length of one of three runs in bytes.
#[cfg(target_arch = "x86_64")]
const RUN: usize = 128;
/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// The CRC after `RUN` more zero bytes. The operation is linear, so four table look-ups suffice.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn behind_run(crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes();
    SHIFT[0][usize::from(a)]
        ^ SHIFT[1][usize::from(b)]
        ^ SHIFT[2][usize::from(c)]
        ^ SHIFT[3][usize::from(d)]
}

static TABLE: [u32; 256] = table();
#[cfg(target_arch = "x86_64")]
static SHIFT: [[u32; 256]; 4] = shift();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

#[cfg(target_arch = "x86_64")]
const fn shift() -> [[u32; 256]; 4] {
    let one = table();
    // The result for each single bit; all others are combinations of these.
    let mut bits = [0u32; 32];
    let mut bit = 0;
    while bit < 32 {
        let mut crc = 1u32 << bit;
        let mut zero = 0;
        while zero < RUN {
            crc = one[(crc & 0xFF) as usize] ^ (crc >> 8);
            zero += 1;
        }
        bits[bit] = crc;
        bit += 1;
    }
    let mut shift = [[0; 256]; 4];
    let mut place = 0;
    while place < 4 {
        let mut byte = 0;
        while byte < 256 {
            let mut bit = 0;
            while bit < 8 {
                if byte >> bit & 1 == 1 {
                    shift[place][byte] ^= bits[8 * place + bit];
                }
                bit += 1;
            }
            byte += 1;
        }
        place += 1;
    }
    shift
}

fn portable(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| TABLE[usize::from(crc as u8 ^ *byte)] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // RFC 3720, B.4, and the usual check value.
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(&[0xFF; 32]), 0x62A8_AB43);
        assert_eq!(crc32c(b""), 0);
    }

    #[test]
    fn all_ways_agree_at_every_length() {
        let bytes: Vec<u8> = (0..2500u32).map(|i| ((i * i) >> 3) as u8).collect();
        for length in 0..bytes.len() {
            let (bytes, wanted) = (&bytes[..length], portable(&bytes[..length]));
            assert_eq!(crc32c(bytes), wanted, "{length}");
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("sse4.2") {
                // SAFETY: the processor has the instruction.
                assert_eq!(unsafe { !hardware(!0, bytes) }, wanted, "{length}");
                if folding::fold(!0, bytes).is_some() {
                    // SAFETY: the processor can fold, so it has the instructions of the narrower way.
                    let state = unsafe { folding::by_256_bits(!0, bytes) };
                    assert_eq!(!state, wanted, "{length}");
                }
            }
        }
    }
}

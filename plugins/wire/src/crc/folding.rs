//! CRC32C of long runs by carry-less multiplication, for processors with AVX-512: 256 bytes at a time are
//! *folded* onto the next 256, which leaves the remainder by the polynomial as it was. What is left at the
//! end goes through the CRC instruction.

use std::arch::x86_64::*;

use super::{POLYNOMIAL, hardware};

/// Bytes of one register.
const LANES: usize = 64;
/// Bytes of one step.
const STEP: usize = 4 * LANES;
/// Shorter runs gain nothing.
pub(super) const LEAST: usize = 2 * STEP;

/// x to the power of `exponent`, modulo the polynomial, bits reversed.
const fn power(exponent: usize) -> i64 {
    let mut remainder = 1u32 << 31;
    let mut count = 0;
    while count < exponent {
        remainder = (remainder >> 1) ^ (POLYNOMIAL * (remainder & 1));
        count += 1;
    }
    (remainder as i64) << 32
}

/// What moves the two halves of 128 bits `bytes` bytes ahead. A product of reversed numbers comes out
/// multiplied by x once too often, hence one less in each exponent.
const fn ahead(bytes: usize) -> [i64; 2] {
    [power(8 * bytes + 63), power(8 * bytes - 1)]
}

const BY_STEP: [i64; 2] = ahead(STEP);
const BY_LANES: [i64; 2] = ahead(LANES);

#[inline(always)]
pub(super) fn is_here() -> bool {
    std::arch::is_x86_feature_detected!("vpclmulqdq")
        && std::arch::is_x86_feature_detected!("avx512f")
}

/// The state of the CRC after `bytes`, [`LEAST`] of them or more.
#[target_feature(enable = "sse4.2,avx512f,vpclmulqdq")]
pub(super) fn fold(state: u32, bytes: &[u8]) -> u32 {
    let load = |bytes: &[u8], lane: usize| {
        let lanes = &bytes[lane * LANES..][..LANES];
        // SAFETY: as many bytes as the register has, at any alignment.
        unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
    };
    let onto = |from: __m512i, factors: [i64; 2], to: __m512i| {
        let factors = _mm512_set4_epi64(factors[1], factors[0], factors[1], factors[0]);
        let low = _mm512_clmulepi64_epi128::<0x00>(from, factors);
        let high = _mm512_clmulepi64_epi128::<0x11>(from, factors);
        // The exclusive or of all three.
        _mm512_ternarylogic_epi64::<0x96>(low, high, to)
    };
    let (first, rest) = bytes.split_at(STEP);
    let mut lanes: [__m512i; 4] = [
        load(first, 0),
        load(first, 1),
        load(first, 2),
        load(first, 3),
    ];
    let begun = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
    lanes[0] = _mm512_xor_si512(lanes[0], begun);
    let mut steps = rest.chunks_exact(STEP);
    for step in &mut steps {
        for (place, lane) in lanes.iter_mut().enumerate() {
            *lane = onto(*lane, BY_STEP, load(step, place));
        }
    }
    let mut last = lanes[0];
    for next in &lanes[1..] {
        last = onto(last, BY_LANES, *next);
    }
    let mut left = steps.remainder().chunks_exact(LANES);
    for next in &mut left {
        last = onto(last, BY_LANES, load(next, 0));
    }
    let mut congruent = [0u8; LANES];
    // SAFETY: as many bytes as the register has.
    unsafe { _mm512_storeu_si512(congruent.as_mut_ptr().cast(), last) };
    hardware(hardware(0, &congruent), left.remainder())
}

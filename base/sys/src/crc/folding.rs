//! CRC32C of long runs by carry-less multiplication, for processors that multiply several numbers at a time
//! (VPCLMULQDQ): four registers at a time are *folded* onto the next four, which leaves the remainder by the
//! polynomial as it was. The CRC instruction processes the rest.

use std::arch::x86_64::*;

use super::{POLYNOMIAL, hardware};

/// Registers of one step.
const LANES: usize = 4;

/// Minimum length of a run; shorter ones gain nothing.
const fn least<R: Register>() -> usize {
    2 * LANES * size_of::<R>()
}

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

/// The factors that move the two halves of 128 bits by `bytes` bytes. A product of reversed numbers has one
/// factor x too many, hence one less in each exponent.
const fn ahead(bytes: usize) -> [i64; 2] {
    [power(8 * bytes + 63), power(8 * bytes - 1)]
}

/// Several numbers of 128 bits, and the operations of folding.
///
/// # Safety
/// All functions: the processor has the instructions.
trait Register: Copy {
    /// The exclusive or with `state`, in the first four bytes.
    unsafe fn begun(self, state: u32) -> Self;
    /// The exclusive or with the products of the halves of `from` and the factors.
    unsafe fn with(self, from: Self, factors: [i64; 2]) -> Self;
}

impl Register for __m512i {
    #[inline(always)]
    unsafe fn begun(self, state: u32) -> Self {
        // SAFETY: guaranteed by the contract of the trait.
        unsafe {
            let state = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
            _mm512_xor_si512(self, state)
        }
    }

    #[inline(always)]
    unsafe fn with(self, from: Self, [first, second]: [i64; 2]) -> Self {
        // SAFETY: guaranteed by the contract of the trait.
        unsafe {
            let factors = _mm512_set4_epi64(second, first, second, first);
            let low = _mm512_clmulepi64_epi128::<0x00>(from, factors);
            let high = _mm512_clmulepi64_epi128::<0x11>(from, factors);
            // The exclusive or of all three.
            _mm512_ternarylogic_epi64::<0x96>(low, high, self)
        }
    }
}

impl Register for __m256i {
    #[inline(always)]
    unsafe fn begun(self, state: u32) -> Self {
        // SAFETY: guaranteed by the contract of the trait.
        unsafe {
            let state = _mm256_zextsi128_si256(_mm_cvtsi32_si128(state as i32));
            _mm256_xor_si256(self, state)
        }
    }

    #[inline(always)]
    unsafe fn with(self, from: Self, [first, second]: [i64; 2]) -> Self {
        // SAFETY: guaranteed by the contract of the trait.
        unsafe {
            let factors = _mm256_set_epi64x(second, first, second, first);
            let low = _mm256_clmulepi64_epi128::<0x00>(from, factors);
            let high = _mm256_clmulepi64_epi128::<0x11>(from, factors);
            _mm256_xor_si256(_mm256_xor_si256(low, high), self)
        }
    }
}

/// The first bytes of `bytes`, which has as many as the register.
#[inline(always)]
fn load<R: Register>(bytes: &[u8]) -> R {
    let bytes = &bytes[..size_of::<R>()];
    // SAFETY: as many bytes as the register has; it may hold any bits.
    unsafe { bytes.as_ptr().cast::<R>().read_unaligned() }
}

/// The state of the CRC after `bytes`, if the processor can fold this number.
#[inline(always)]
pub(super) fn fold(state: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.len() < least::<__m256i>() {
        return None;
    }
    by_widest(state, bytes)
}

/// The same for many bytes, with the widest useful registers. Out of line, so that it does not slow short
/// frames.
#[inline(never)]
fn by_widest(state: u32, bytes: &[u8]) -> Option<u32> {
    if !std::arch::is_x86_feature_detected!("vpclmulqdq")
        || !std::arch::is_x86_feature_detected!("avx2")
    {
        return None;
    }
    // SAFETY: the processor has the instructions.
    Some(unsafe {
        if bytes.len() >= least::<__m512i>() && std::arch::is_x86_feature_detected!("avx512f") {
            by_512_bits(state, bytes)
        } else {
            by_256_bits(state, bytes)
        }
    })
}

#[target_feature(enable = "sse4.2,avx512f,vpclmulqdq")]
fn by_512_bits(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: the processor has the instructions.
    unsafe { fold_by::<__m512i>(state, bytes) }
}

#[target_feature(enable = "sse4.2,avx2,vpclmulqdq")]
pub(super) fn by_256_bits(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: as above.
    unsafe { fold_by::<__m256i>(state, bytes) }
}

/// The state of the CRC after `bytes`, one step of them or more.
///
/// # Safety
/// The processor has the instructions of the register, and SSE 4.2.
#[inline(always)]
unsafe fn fold_by<R: Register>(state: u32, bytes: &[u8]) -> u32 {
    let (lane, step) = (size_of::<R>(), LANES * size_of::<R>());
    let by_lane = const { ahead(size_of::<R>()) };
    let by_step = const { ahead(LANES * size_of::<R>()) };
    // SAFETY: guaranteed by the caller; a register may be stored as its bytes.
    unsafe {
        let (first, rest) = bytes.split_at(step);
        let mut lanes: [R; LANES] = std::array::from_fn(|place| load(&first[place * lane..]));
        lanes[0] = lanes[0].begun(state);
        let mut steps = rest.chunks_exact(step);
        for step in &mut steps {
            for (place, of) in lanes.iter_mut().enumerate() {
                *of = load::<R>(&step[place * lane..]).with(*of, by_step);
            }
        }
        let mut last = lanes[0];
        for next in &lanes[1..] {
            last = next.with(last, by_lane);
        }
        let mut left = steps.remainder().chunks_exact(lane);
        for next in &mut left {
            last = load::<R>(next).with(last, by_lane);
        }
        let congruent = std::slice::from_raw_parts((&raw const last).cast(), lane);
        hardware(hardware(0, congruent), left.remainder())
    }
}

//! Sizes as people write them: `8`, `4k`, `64K`, `1M`, `all`, lists.

#![forbid(unsafe_code)]

use crate::{Error, Result};

/// Reads one size; `k`, `m` and `g` are powers of 1024.
///
/// # Errors
/// The text is not a size, or above what a message can have.
pub fn parse(text: &str) -> Result<usize> {
    let bad = || Error::Usage(format!("{text:?} is not a size such as 8, 4k or 1m"));
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower
        .strip_suffix("ib")
        .or_else(|| lower.strip_suffix('b'))
        .unwrap_or(&lower);
    let (digits, shift) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) if lower.ends_with('k') => (digits, 10),
        Some(digits) if lower.ends_with('m') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (lower, 0),
    };
    let number: u32 = digits.parse().map_err(|_| bad())?;
    let bytes = u64::from(number) << shift;
    let bytes = u32::try_from(bytes).map_err(|_| bad())?;
    Ok(bytes as usize)
}

/// Reads a list of sizes; `all` is every power of two up to `largest`.
///
/// # Errors
/// A part is not a size.
pub fn parse_list(text: &str, largest: usize) -> Result<Vec<usize>> {
    if text.eq_ignore_ascii_case("all") {
        return Ok(powers(1, largest));
    }
    text.split(',').map(parse).collect()
}

/// Powers of two from `first` to `largest`.
#[must_use]
pub fn powers(first: usize, largest: usize) -> Vec<usize> {
    std::iter::successors(Some(first), |size| size.checked_mul(2))
        .take_while(|size| *size <= largest)
        .collect()
}

/// The largest size of a list, for what must be known before the device is opened.
#[must_use]
pub fn largest(text: Option<&str>) -> usize {
    text.and_then(|text| parse_list(text, 0).ok())
        .and_then(|sizes| sizes.into_iter().max())
        .unwrap_or(0)
}

/// A size in the unit that keeps it exact: `8 B`, `4 KiB`, `1 MiB`.
#[must_use]
pub fn show(bytes: usize) -> String {
    match bytes {
        0 => "0 B".to_owned(),
        b if b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("8").unwrap(), 8);
        assert_eq!(parse("4k").unwrap(), 4096);
        assert_eq!(parse("64 KiB".replace(' ', "").as_str()).unwrap(), 65536);
        assert_eq!(parse("1M").unwrap(), 1 << 20);
        assert_eq!(parse("1g").unwrap(), 1 << 30);
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "k", "-1", "4x", "1.5k", "4g", "99999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn all_ends_at_the_largest() {
        assert_eq!(parse_list("all", 8).unwrap(), [1, 2, 4, 8]);
        assert_eq!(parse_list("ALL", 7).unwrap(), [1, 2, 4]);
        assert_eq!(parse_list("8,4k", 1).unwrap(), [8, 4096]);
        assert!(parse_list("8,,9", 1).is_err());
    }

    #[test]
    fn sizes_are_shown_exactly() {
        assert_eq!(show(8), "8 B");
        assert_eq!(show(1024), "1 KiB");
        assert_eq!(show(1025), "1025 B");
        assert_eq!(show(1 << 20), "1 MiB");
        assert_eq!(largest(Some("8,1m,64k")), 1 << 20);
        assert_eq!(largest(Some("all")), 0);
    }
}

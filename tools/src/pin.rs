//! Which CPUs the two processes of a measurement run on.

#![forbid(unsafe_code)]

use std::path::Path;

use crate::{Error, Result, sys};

/// The two CPUs: this process's and its peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(pub usize, pub usize);

impl Pair {
    /// Reads `A,B`.
    ///
    /// # Errors
    /// It is not two numbers.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || Error::Usage(format!("{text:?} is not a pair of CPUs such as 0,1"));
        let (first, second) = text.split_once(',').ok_or_else(bad)?;
        let read = |part: &str| part.trim().parse().map_err(|_| bad());
        Ok(Self(read(first)?, read(second)?))
    }

    /// Two CPUs of different cores if there are, of one core else; one CPU twice if there is only one.
    #[must_use]
    pub fn choose() -> Self {
        let cpus = sys::allowed_cpus();
        let with_core: Vec<(usize, (u64, u64))> =
            cpus.iter().map(|cpu| (*cpu, core_of(*cpu))).collect();
        pick(&with_core)
    }
}

/// The first CPU that this process may use, and the first one of each other core.
#[must_use]
pub fn first_of_each_core() -> (usize, Vec<usize>) {
    let cpus = sys::allowed_cpus();
    let first = cpus.first().copied().unwrap_or(0);
    let mut cores = vec![core_of(first)];
    let others = cpus.into_iter().filter(|cpu| {
        let core = core_of(*cpu);
        let is_new = !cores.contains(&core);
        cores.push(core);
        is_new
    });
    (first, others.collect())
}

fn pick(cpus: &[(usize, (u64, u64))]) -> Pair {
    let Some((first, core)) = cpus.first().copied() else {
        return Pair(0, 0);
    };
    let other_core = cpus.iter().find(|(_, other)| *other != core);
    let other = other_core
        .or_else(|| cpus.get(1))
        .map_or(first, |(cpu, _)| *cpu);
    Pair(first, other)
}

/// Package and core of a CPU; where the system does not report them, each CPU is its own core.
fn core_of(cpu: usize) -> (u64, u64) {
    let folder = format!("/sys/devices/system/cpu/cpu{cpu}/topology");
    let read = |name: &str| {
        let text = std::fs::read_to_string(Path::new(&folder).join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    match (read("physical_package_id"), read("core_id")) {
        (Some(package), Some(core)) => (package, core),
        _ => (u64::MAX, cpu as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read() {
        assert_eq!(Pair::parse("0, 3").unwrap(), Pair(0, 3));
        assert!(Pair::parse("0").is_err());
        assert!(Pair::parse("a,b").is_err());
    }

    #[test]
    fn another_core_is_better_than_the_sibling() {
        assert_eq!(pick(&[(0, (0, 0)), (1, (0, 0)), (2, (0, 1))]), Pair(0, 2));
        assert_eq!(pick(&[(4, (0, 0)), (5, (0, 0))]), Pair(4, 5));
        assert_eq!(pick(&[(3, (0, 0))]), Pair(3, 3));
        assert_eq!(pick(&[]), Pair(0, 0));
    }
}

//! Programs of 32 bits beside those of 64 (`--class`).

use clap::ValueEnum;
use vipl_ctest::Build;

/// Of how many bits the two sides of a program are; the first is the one that connections are requested from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Class {
    /// Both as this program is.
    #[value(name = "64")]
    Own,
    /// Both of 32 bits.
    #[value(name = "32")]
    Narrow,
    /// A side 0 of 64 bits, which serves, and a side 1 of 32, which asks.
    #[value(name = "64-32")]
    NarrowAsks,
    /// A side 0 of 32 bits, which serves, and a side 1 of 64, which asks.
    #[value(name = "32-64")]
    NarrowServes,
}

impl Class {
    /// The builds of side 0 and side 1.
    pub(crate) fn builds(self) -> (Build, Build) {
        match self {
            Class::Own => (Build::Own, Build::Own),
            Class::Narrow => (Build::I386, Build::I386),
            Class::NarrowAsks => (Build::Own, Build::I386),
            Class::NarrowServes => (Build::I386, Build::Own),
        }
    }

    /// What the name of a run says of it.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Class::Own => "",
            Class::Narrow => "_32",
            Class::NarrowAsks => "_64-32",
            Class::NarrowServes => "_32-64",
        }
    }
}

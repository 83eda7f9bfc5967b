//! What can be found. `docs/TROUBLESHOOTING.md` has the same list; a test compares the two.

use serde_json::{Value, json};

/// How bad it is, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// As it should be.
    Fine,
    /// The check could not be made.
    Unknown,
    /// It works, but slowly, or less of it than could be.
    Slow,
    /// It does not work.
    Broken,
}

impl Verdict {
    /// As the page and the list say it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fine => "ok",
            Self::Unknown => "unknown",
            Self::Slow => "slow",
            Self::Broken => "broken",
        }
    }
}

macro_rules! kinds {
    ($($kind:ident $name:literal $verdict:ident $means:literal)*) => {
        /// A kind of finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $(#[doc = $means] $kind,)*
        }

        impl Kind {
            /// All of them, in the order of the list.
            pub const ALL: &[Kind] = &[$(Self::$kind),*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$kind => $name,)* }
            }

            /// How bad it is.
            #[must_use]
            pub fn verdict(self) -> Verdict {
                match self { $(Self::$kind => Verdict::$verdict,)* }
            }

            /// What follows from it.
            #[must_use]
            pub fn means(self) -> &'static str {
                match self { $(Self::$kind => $means,)* }
            }
        }
    };
}

kinds! {
    NoLibrary "no-library" Broken "no program finds the VIPL library"
    NoPlugins "no-plug-ins" Broken "without plug-ins no device can be opened"
    NoAgent "no-agent" Broken "without a Kernel Agent no device opens and nothing connects"
    PrivateAgent "private-agent" Broken "every process has an agent of its own, so two processes cannot connect"
    UnknownDevice "unknown-device" Broken "no plug-in serves this name: VipOpenNic gives VIP_INVALID_PARAMETER"
    ClosedDevice "closed-device" Broken "VipOpenNic fails for this device"
    MemoryFiles "memory-files" Broken "the system refuses memory files (memfd_create), which connections share"
    FileSize "file-size" Broken "memory that two processes share counts as a file, and may not be large enough"
    Interface "interface" Broken "the network interface carries nothing"
    NoAddress "no-address" Broken "the interface has no address by which other hosts reach this device"
    Firewall "firewall" Broken "datagrams of other hosts are dropped before the Kernel Agent or the program gets them"
    UnknownHost "unknown-host" Broken "the name service does not know that host"
    Unreached "unreached" Broken "connections to that host fail"
    Setting "setting" Slow "a setting is not used, and its default is"
    RefusedPlugin "refused-plug-in" Slow "this file is left out, with the devices that it would serve"
    OtherAgent "other-agent" Slow "library and agent are of different versions; restart the agent after an upgrade"
    ConfinedAgent "confined-agent" Slow "the agent keeps restrictions of the program that started it, for all programs of the user"
    Budget "budget" Slow "nearly all that the agent grants a user is taken; calls will give VIP_ERROR_RESOURCE"
    OverUdp "over-udp" Slow "this user may not use raw Ethernet, so the name leads to UDP, with about twice the latency"
    LockedMemory "locked-memory" Slow "RDMA devices pin registered memory, of which this process may have little"
    MemoryAccess "memory-access" Slow "the kernel keeps processes from each other's memory: large messages and RDMA take two copies, not one"
    Barriers "barriers" Slow "without the system call membarrier every lock costs a fence"
    ProcessHandles "process-handles" Slow "without pidfd_open the end of a process may be noticed late"
    OneProcessor "one-processor" Slow "both sides of a connection take turns on one processor: polling costs its whole time slice"
    Quota "quota" Slow "processes that poll use up the processor time of their group, and then stand still"
    FarProcessors "far-processors" Slow "processors are near or far from each other, and programs that are not pinned get either"
    Groups "groups" Slow "programs that poll in one session can keep the processor from those of others for seconds"
    UnusedRdma "unused-rdma" Slow "this host has an RDMA device, which the device does not use"
    ClosedRdma "closed-rdma" Slow "an RDMA device of this host cannot be used by this user"
    SmallPath "small-path" Slow "packets on the way to that host are smaller than those of the interface"
    BlackHole "black-hole" Slow "long packets vanish on the way: a connection stands still for a second at its first long message"
    Warning "warning" Slow "the library warns of something else; the index of messages has it"
}

/// One answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    name: &'static str,
    verdict: Verdict,
    found: String,
    means: Option<&'static str>,
    mend: Option<String>,
}

impl Finding {
    /// A check that has found nothing wrong; `found` says what is there, shortly.
    pub fn fine(name: &'static str, found: impl Into<String>) -> Self {
        Self::plain(name, Verdict::Fine, found.into())
    }

    /// A check that could not be made, and why.
    pub fn unknown(name: &'static str, why: impl Into<String>) -> Self {
        Self::plain(name, Verdict::Unknown, why.into())
    }

    fn plain(name: &'static str, verdict: Verdict, found: String) -> Self {
        Self {
            name,
            verdict,
            found,
            means: None,
            mend: None,
        }
    }

    /// With a command or a step that mends it.
    #[must_use]
    pub fn mended_by(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    /// How bad it is.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The name of its kind, or of the check.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What was found.
    #[must_use]
    pub fn found(&self) -> &str {
        &self.found
    }

    /// What follows from it; none where nothing is wrong.
    #[must_use]
    pub fn means(&self) -> Option<&'static str> {
        self.means
    }

    /// What mends it.
    #[must_use]
    pub fn mend(&self) -> Option<&str> {
        self.mend.as_deref()
    }

    pub(super) fn json(&self) -> Value {
        json!({"name": self.name, "verdict": self.verdict.name(), "found": self.found,
            "means": self.means, "mend": self.mend})
    }
}

impl Kind {
    /// Something of this kind.
    pub fn found(self, what: impl Into<String>) -> Finding {
        Finding {
            means: Some(self.means()),
            ..Finding::plain(self.name(), self.verdict(), what.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/TROUBLESHOOTING.md");

    /// The list of docs/TROUBLESHOOTING.md and the code say the same, in the same order.
    #[test]
    fn the_list_has_every_kind() {
        let (_, table) = PAGE
            .split_once("| finding | so | it means |\n")
            .expect("the list");
        let rows: Vec<&str> = table
            .lines()
            .skip(1)
            .take_while(|line| line.starts_with('|'))
            .collect();
        let kinds = Kind::ALL.iter().map(|kind| {
            format!(
                "| `{}` | {} | {} |",
                kind.name(),
                kind.verdict().name(),
                kind.means()
            )
        });
        let kinds: Vec<String> = kinds.collect();
        assert_eq!(rows, kinds, "the list should be:\n{}", kinds.join("\n"));
    }
}

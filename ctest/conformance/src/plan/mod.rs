//! The plan: which program is run how, and which assertions each run has to show.
//!
//! The table is in the module [`table`]; here are its types. An [`Entry`] is one C program; its modes, forms,
//! levels and ways span its runs. A [`Shows`] is a list of assertions and the runs that have to show it.

mod table;

use std::fmt;

use crate::assertions::expand;
use crate::class::Class;
use crate::provider::{Abilities, NO_OVERRUN, NONE, Provider, RD, RR, U};
pub(crate) use table::{ELSEWHERE, ENTRIES, RUST_TESTS};

/// Strict mode, or the default one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `VIPL_STRICT=1`.
    Strict,
    /// The compatible mode.
    Default,
}

/// How the two sides of a program live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As two processes.
    Two,
    /// As two VIs of one process.
    One,
    /// As two processes on two hosts, where the device has a network.
    Apart,
}

impl Form {
    const fn name(self) -> &'static str {
        match self {
            Form::Two => "two",
            Form::One => "one",
            Form::Apart => "apart",
        }
    }
}

/// A reliability level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// Unreliable.
    U,
    /// Reliable Delivery.
    Rd,
    /// Reliable Reception.
    Rr,
}

impl Level {
    /// The ability it takes.
    pub(crate) const fn ability(self) -> Abilities {
        match self {
            Level::U => U,
            Level::Rd => RD,
            Level::Rr => RR,
        }
    }

    /// The argument of the option `-l`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Level::U => "U",
            Level::Rd => "RD",
            Level::Rr => "RR",
        }
    }
}

/// Which Kernel Agent serves a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agent {
    /// One that was started for the run beforehand.
    Running,
    /// The one that the program finds or starts by itself.
    Auto,
}

/// Assertions, and the runs of an entry that have to show them.
#[derive(Clone, Copy)]
pub(crate) struct Shows {
    /// Identifiers; `NIC-01..04` is a range.
    pub(crate) ids: &'static str,
    mode: Option<Mode>,
    levels: &'static [Level],
    needs: Abilities,
}

/// Assertions that all runs of the entry show.
pub(crate) const fn ids(ids: &'static str) -> Shows {
    Shows {
        ids,
        mode: None,
        levels: &[],
        needs: NONE,
    }
}

impl Shows {
    const fn strict(mut self) -> Shows {
        self.mode = Some(Mode::Strict);
        self
    }

    const fn default_mode(mut self) -> Shows {
        self.mode = Some(Mode::Default);
        self
    }

    const fn at(mut self, levels: &'static [Level]) -> Shows {
        self.levels = levels;
        self
    }

    const fn needs(mut self, needs: Abilities) -> Shows {
        self.needs = needs;
        self
    }
}

/// One program and its runs.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// The file in `ctest/programs`, without its ending.
    pub(crate) program: &'static str,
    /// Further arguments.
    pub(crate) arguments: &'static [&'static str],
    /// Further settings, with the name that runs with them have.
    pub(crate) env: &'static [(&'static str, &'static str)],
    /// What the name of a run says about `arguments` and `env`.
    pub(crate) label: &'static str,
    modes: &'static [Mode],
    forms: &'static [Form],
    levels: &'static [Level],
    agents: &'static [Agent],
    all_ways: bool,
    /// Sends without a pause, so that on Unreliable a network loses some of it.
    floods: bool,
    needs: Abilities,
    /// Log lines with these texts are expected.
    pub(crate) allow: &'static [&'static str],
    /// What is shown.
    pub(crate) shows: &'static [Shows],
}

const STRICT: &[Mode] = &[Mode::Strict];
const DEFAULT: &[Mode] = &[Mode::Default];
const BOTH: &[Mode] = &[Mode::Strict, Mode::Default];
const LEVELS: &[Level] = &[Level::U, Level::Rd, Level::Rr];
const RELIABLE: &[Level] = &[Level::Rd, Level::Rr];

/// A program without a second side, and without a level.
const fn alone(program: &'static str, modes: &'static [Mode], shows: &'static [Shows]) -> Entry {
    Entry {
        program,
        arguments: &[],
        env: &[],
        label: "",
        modes,
        forms: &[],
        levels: &[],
        agents: &[Agent::Running],
        all_ways: false,
        floods: false,
        needs: RD,
        allow: &[],
        shows,
    }
}

/// A program of two sides, as two processes and as one.
const fn sides(program: &'static str, modes: &'static [Mode], shows: &'static [Shows]) -> Entry {
    let mut entry = alone(program, modes, shows);
    entry.forms = &[Form::Two, Form::One];
    entry
}

impl Entry {
    const fn two_only(mut self) -> Entry {
        self.forms = &[Form::Two];
        self
    }

    const fn at(mut self, levels: &'static [Level]) -> Entry {
        self.levels = levels;
        self.needs = NONE; // but the level of the run
        self
    }

    const fn needs(mut self, needs: Abilities) -> Entry {
        self.needs = needs;
        self
    }

    const fn all_ways(mut self) -> Entry {
        self.all_ways = true;
        self
    }

    const fn floods(mut self) -> Entry {
        self.floods = true;
        self
    }

    const fn all_agents(mut self) -> Entry {
        self.agents = &[Agent::Running, Agent::Auto];
        self
    }

    const fn allow(mut self, texts: &'static [&'static str]) -> Entry {
        self.allow = texts;
        self
    }

    const fn arguments(mut self, label: &'static str, arguments: &'static [&'static str]) -> Entry {
        self.arguments = arguments;
        self.label = label;
        self
    }

    const fn env(
        mut self,
        label: &'static str,
        env: &'static [(&'static str, &'static str)],
    ) -> Entry {
        self.env = env;
        self.label = label;
        self
    }

    /// The runs of this entry on a provider.
    fn runs(&'static self, provider: &'static Provider, class: Class) -> Vec<Planned> {
        let mut forms: Vec<Option<Form>> = some_or_none(self.forms);
        if provider.on_interface && self.forms.contains(&Form::Two) {
            forms.push(Some(Form::Apart));
        }
        let levels: Vec<Option<Level>> = some_or_none(self.levels);
        let ways = if self.all_ways {
            provider.ways.len()
        } else {
            1
        };
        let mut runs = Vec::new();
        for &mode in self.modes {
            for &form in &forms {
                for &level in &levels {
                    for way in 0..ways {
                        for &agent in self.agents {
                            // The agent has nothing to do with how data moves, and two hosts take two.
                            let elsewhere = way > 0 || form == Some(Form::Apart);
                            if agent == Agent::Auto && elsewhere {
                                continue;
                            }
                            runs.push(Planned {
                                entry: self,
                                provider,
                                mode,
                                form,
                                level,
                                way,
                                agent,
                                class,
                            });
                        }
                    }
                }
            }
        }
        runs
    }
}

fn some_or_none<T: Copy>(list: &[T]) -> Vec<Option<T>> {
    match list {
        [] => vec![None],
        _ => list.iter().copied().map(Some).collect(),
    }
}

/// One run of one program.
#[derive(Clone, Copy)]
pub(crate) struct Planned {
    /// The program.
    pub(crate) entry: &'static Entry,
    /// On which plug-in.
    pub(crate) provider: &'static Provider,
    /// The mode.
    pub(crate) mode: Mode,
    /// The form, of programs with two sides.
    pub(crate) form: Option<Form>,
    /// The level, of programs that take one.
    pub(crate) level: Option<Level>,
    /// Number of the provider's way to move data.
    pub(crate) way: usize,
    /// The agent.
    pub(crate) agent: Agent,
    /// Word sizes of the two sides.
    pub(crate) class: Class,
}

impl Planned {
    /// Whether there is such a run: two builds need two processes, and examples are built for one word size.
    fn is_possible(&self) -> bool {
        let (first, second) = self.class.builds();
        let processes = matches!(self.form, Some(Form::Two | Form::Apart));
        self.class == Class::Own || self.provider.source.is_none() && (first == second || processes)
    }

    /// What the run needs and the provider has not.
    pub(crate) fn lacks(&self) -> Abilities {
        let level = self.level.map_or(NONE, Level::ability);
        let lacks = self.provider.abilities.lacking(self.entry.needs.and(level));
        let on_a_network = (self.form == Some(Form::Apart) || self.provider.is_overrun_at_home())
            && self.level == Some(Level::U);
        match self.entry.floods && on_a_network {
            true => lacks.and(NO_OVERRUN),
            false => lacks,
        }
    }

    /// The assertions that this run has to show, and of each what it needs that the provider has not.
    pub(crate) fn shows(&self) -> Vec<(String, Abilities)> {
        let mut all = Vec::new();
        for shows in self.entry.shows {
            let fits = shows.mode.is_none_or(|mode| mode == self.mode)
                && (shows.levels.is_empty()
                    || self
                        .level
                        .is_some_and(|level| shows.levels.contains(&level)));
            if fits {
                let lacks = self
                    .lacks()
                    .and(self.provider.abilities.lacking(shows.needs));
                all.extend(expand(shows.ids).into_iter().map(|id| (id, lacks)));
            }
        }
        all
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.provider.name, self.entry.program)?;
        f.write_str(match self.mode {
            Mode::Strict => "_strict",
            Mode::Default => "_default",
        })?;
        if let Some(form) = self.form {
            write!(f, "_{}", form.name())?;
        }
        if let Some(level) = self.level {
            write!(f, "_{}", level.name())?;
        }
        if self.entry.all_ways && !self.provider.ways[self.way].name.is_empty() {
            write!(f, "_{}", self.provider.ways[self.way].name)?;
        }
        if !self.entry.label.is_empty() {
            write!(f, "_{}", self.entry.label)?;
        }
        if self.agent == Agent::Auto {
            f.write_str("_agent-auto")?;
        }
        f.write_str(self.class.suffix())
    }
}

/// A test of the crate `vipl-ctest` that shows assertions; it is run by its name.
pub(crate) struct RustTest {
    /// The file in `ctest/tests`.
    pub(crate) file: &'static str,
    /// The function.
    pub(crate) name: &'static str,
    /// On which provider.
    pub(crate) provider: &'static str,
    /// Identifiers.
    pub(crate) ids: &'static str,
}

/// Assertions that neither a program nor a test shown here proves, and what does.
pub(crate) struct Elsewhere {
    /// Identifiers.
    pub(crate) ids: &'static str,
    /// What shows them, or why nothing does.
    pub(crate) why: &'static str,
}

/// All runs of these classes on these providers.
pub(crate) fn runs(providers: &[&'static Provider], classes: &[Class]) -> Vec<Planned> {
    let mut all = Vec::new();
    for &class in classes {
        for provider in providers {
            let runs = ENTRIES.iter().flat_map(|entry| entry.runs(provider, class));
            all.extend(runs.filter(Planned::is_possible));
        }
    }
    all
}

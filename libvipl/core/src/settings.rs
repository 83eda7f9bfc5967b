//! Settings: declared once, read from the configuration file and then from the environment.
//!
//! The name `connect_grace_ms` is `VIPL_CONNECT_GRACE_MS` in the environment. Settings of a plug-in are named
//! `plugin.key`: a table `[plugin]` in the file, `VIPL_KEY` or `VIPL_PLUGIN_KEY` in the environment.
//! `VIPL_KEY` applies to every plug-in that declares `key`. Declarations of plug-ins are known once they have
//! been loaded; undeclared names are logged then. With raised privileges (`AT_SECURE`) the user's files and
//! the environment are ignored.

use std::collections::{BTreeMap, BTreeSet};

use crate::sync::Mutex;

mod declared;
mod plugins;
mod read;

#[cfg(fuzzing)]
pub(crate) use declared::Kind;
pub(crate) use declared::{BadDeclaration, DECLARED, Declared, of_plugin};

/// The source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File,
    Environment,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::File => "file",
            Source::Environment => "environment",
        }
    }
}

/// The values of this process.
#[derive(Default)]
pub(crate) struct Settings {
    values: BTreeMap<String, (String, Source)>,
    /// Variables other than settings of the library, in lower case and without `VIPL_`: those of plug-ins.
    variables: BTreeMap<String, String>,
    /// Declarations of each plug-in.
    plugins: Mutex<BTreeMap<String, Vec<Declared>>>,
    /// Undeclared names that have been logged.
    reported: Mutex<BTreeSet<String>>,
    /// `[device_map]` of the file, as `name=target` pairs; the environment's map takes precedence.
    pub(crate) file_device_map: Vec<(String, String)>,
    pub(crate) secure: bool,
    pub(crate) problems: Vec<String>,
}

impl Settings {
    /// Logs errors in file and environment, after the log was installed, which needs the settings.
    pub(crate) fn report(&self) {
        for problem in &self.problems {
            log::warn!(target: "settings", "{problem}");
        }
    }

    /// The value as given, or the default, which may depend on the mode (spec §17).
    pub(crate) fn text(&self, name: &str) -> &str {
        match (self.given(name), declared::in_strict_mode(name)) {
            (Some(text), _) => text,
            (None, Some(text)) if self.strict() => text,
            _ => default(name),
        }
    }

    /// The value, if given.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(text, _)| text.as_str())
    }

    /// The source of the value.
    pub(crate) fn source(&self, name: &str) -> Source {
        self.values
            .get(name)
            .map_or(Source::Default, |(_, source)| *source)
    }

    /// The value in the form of its kind, see [`Kind::read`]. An invalid one is logged, and the default used.
    fn value(&self, name: &str) -> String {
        let Some(setting) = declared(name) else {
            return String::new();
        };
        let (kind, given) = (setting.kind, self.text(name));
        kind.read(given).unwrap_or_else(|| {
            let (expected, default) = (kind.expected(), default(name));
            log::warn!(target: "settings", "{name}: {given:?} is not {expected}; using {default}");
            kind.read(default).unwrap_or_default()
        })
    }

    fn truth(&self, name: &str) -> bool {
        self.value(name) == "1"
    }

    /// A number, within the declared bounds.
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.value(name).parse().unwrap_or(0)
    }

    pub(crate) fn strict(&self) -> bool {
        self.truth("strict")
    }
    pub(crate) fn null_ptag(&self) -> bool {
        self.truth("null_ptag")
    }
    pub(crate) fn null_mem_attributes(&self) -> bool {
        self.truth("null_mem_attributes")
    }
    pub(crate) fn flight(&self) -> bool {
        self.truth("flight")
    }
    pub(crate) fn lenient_destroy(&self) -> bool {
        self.truth("lenient_destroy")
    }
    pub(crate) fn carry_unflagged_immediate(&self) -> bool {
        self.truth("carry_unflagged_immediate")
    }
    pub(crate) fn check_descriptor_memory(&self) -> bool {
        self.truth("check_descriptor_memory")
    }
    pub(crate) fn check_receive_whole(&self) -> bool {
        self.truth("check_receive_whole")
    }
    pub(crate) fn connect_grace_ms(&self) -> u64 {
        self.number("connect_grace_ms")
    }
    pub(crate) fn disconnect_notice_ms(&self) -> u64 {
        self.number("disconnect_notice_ms")
    }
    pub(crate) fn on_bug_abort(&self) -> bool {
        self.text("on_bug") == "abort"
    }
}

/// The default of the compatible mode.
fn default(name: &str) -> &'static str {
    declared(name)
        .and_then(|setting| setting.default)
        .unwrap_or_default()
}

fn declared(name: &str) -> Option<&'static Declared> {
    DECLARED.iter().find(|setting| setting.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn from_environment(variables: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        let owned = variables
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        settings.read_environment(owned);
        settings
    }

    #[test]
    fn the_mode_decides_unless_a_point_is_set_alone() {
        let settings = from_environment(&[]);
        assert!(settings.null_ptag() && !settings.check_descriptor_memory());
        assert_eq!(settings.connect_grace_ms(), 2000);
        let settings = from_environment(&[("VIPL_STRICT", "1")]);
        assert!(!settings.null_ptag() && settings.check_descriptor_memory());
        assert_eq!(settings.connect_grace_ms(), 0);
        let settings = from_environment(&[("VIPL_STRICT", "1"), ("VIPL_NULL_PTAG", "yes")]);
        assert!(settings.null_ptag() && !settings.lenient_destroy());
    }

    #[test]
    fn a_file_sets_values_and_the_environment_wins() {
        let mut settings = Settings::default();
        settings.read_file(
            "t",
            "strict = true\nspin_us = 7\n[device_map]\nvia_eth0 = \"loopback:\"\n[loopback]\nsingle_copy = false\n",
        );
        assert!(settings.problems.is_empty(), "{:?}", settings.problems);
        assert!(settings.strict());
        assert_eq!(settings.number("spin_us"), 7);
        assert_eq!(settings.text("loopback.single_copy"), "false");
        assert_eq!(
            settings.file_device_map,
            [("via_eth0".to_owned(), "loopback:".to_owned())]
        );
        settings.read_environment([("VIPL_STRICT".to_owned(), "no".to_owned())].into_iter());
        assert!(!settings.strict());
        assert_eq!(settings.source("strict"), Source::Environment);
    }
}

//! Settings: declared once, read from the configuration file and then from the environment.
//!
//! The name `connect_grace_ms` is `VIPL_CONNECT_GRACE_MS` in the environment. Settings of a plug-in are
//! named `plugin.key`: a table `[plugin]` in the file, `VIPL_KEY` or `VIPL_PLUGIN_KEY` in the
//! environment. With raised privileges (`AT_SECURE`) neither file path nor environment is heeded.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vipl_plugin_abi::text;

/// One declared setting.
pub(crate) struct Declared {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
}

macro_rules! declare {
    ($($name:literal $kind:literal $default:literal $help:literal)*) => {
        &[$(Declared { name: $name, kind: $kind, default: $default, help: $help }),*]
    };
}

/// Every setting of the library; those of plug-ins that come with it are listed too, so that a
/// misspelt name can be told from a plug-in's own.
pub(crate) const DECLARED: &[Declared] = declare! {
    "strict" "boolean" "false" "follow the Developer's Guide to the letter; sets the defaults of the next eight"
    "null_ptag" "boolean" "true" "accept a NULL protection tag; it matches everything of its NIC handle"
    "null_mem_attributes" "boolean" "true" "accept NULL memory attributes: no tag, no RDMA"
    "check_descriptor_memory" "boolean" "false" "check the memory handle of the descriptor itself at each post"
    "lenient_destroy" "boolean" "true" "let VipDestroyVi drop descriptors that are still queued"
    "connect_grace_ms" "milliseconds" "2000" "time for which VipConnectRequest retries before VIP_NO_MATCH"
    "disconnect_notice_ms" "milliseconds" "1000" "time from an orderly remote disconnect to VIP_ERROR_CONN_LOST"
    "carry_unflagged_immediate" "boolean" "true" "transfer ImmediateData even without VIP_CONTROL_IMMEDIATE"
    "check_receive_whole" "boolean" "false" "check all memory of a receive's segments, not only as far as the message reaches"
    "device_map" "name=plugin:argument;..." "" "maps device names to plug-ins; `*` matches every name"
    "agent" "auto, off or PATH" "auto" "the Kernel Agent: find or start one, a private one, or the one at this socket"
    "agent_program" "path" "" "the vipkad to start; default: beside the library"
    "plugin_path" "directories" "" "folders searched for plug-ins first"
    "plugins" "names" "" "only these plug-ins (a,b), or all but these (^a,b)"
    "spin_us" "microseconds" "20" "time that a wait polls before it sleeps"
    "yield_after" "polls" "1000" "empty polls after which a thread yields its processor, sooner if others use it; 0: never"
    "max_transfer_size" "bytes" "65536" "largest message, 32768 to 1073741824"
    "max_register_bytes" "bytes" "0" "memory that may be registered; 0: the plug-in's default, for loopback RLIMIT_MEMLOCK but at least 64 MiB"
    "hosts" "path" "/etc/vip_hosts" "table of hosts for the name service"
    "log" "levels" "warn" "error, warn, info, debug, trace; also subsystem=level, comma separated"
    "log_file" "path" "" "file to which the log is appended instead of standard error"
    "on_bug" "continue or abort" "continue" "what to do when the library catches a bug of its own"
    "loopback.single_copy" "boolean" "true" "let large messages and RDMA go straight from process to process"
    "loopback.eager_max" "bytes" "16384" "largest message that goes through the ring"
    "clan.transfer_max" "bytes" "" "largest message, 32768 to 1073741824; default: max_transfer_size if that is given, else 65472 as on the card"
    "clan.rdma_read" "boolean" "false" "let RDMA Read work, which the card did not have"
    "clan.inline_max" "bytes" "80" "largest message that goes into the doorbell; 0: descriptors do not, either"
    "clan.single_copy" "boolean" "true" "let a program that looks fetch a long message itself, in one copy"
    "clan.interface" "name" "" "Ethernet interface behind /dev/clanvi0 and nic0, for partners on other hosts; empty: this host only"
    "clan.poll_us" "microseconds" "100" "how long the device polls before it sleeps, 0 to 10000"
    "tulip.receive_frames" "frames" "256" "receive ring of each NIC handle, 32 to 16384"
    "gnic2.receive_frames" "frames" "256" "receive ring of each NIC handle, 32 to 16384"
    "sim.seed" "number" "1" "where all chances come from; the same seed, the same fates"
    "sim.loss" "probability" "0" "how many frames are lost, 0 to 0.9"
    "sim.dup" "probability" "0" "how many frames arrive twice"
    "sim.reorder" "probability" "0" "how many frames are overtaken"
    "sim.corrupt" "probability" "0" "how many frames have a bit changed"
    "sim.delay" "microseconds" "0" "how long each frame is on its way"
    "sim.rate" "bytes per second" "0" "how fast a direction of a connection is; 0: no limit"
    "sim.mtu" "bytes" "1500" "largest frame, 256 to 9000"
    "sim.node" "number" "0" "which node of the simulated network this process is on, 0 to 255"
};

/// Where a value came from.
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
    /// What `[device_map]` in the file says, as `name=target` lines; the environment's map comes first.
    pub(crate) file_device_map: Vec<(String, String)>,
    pub(crate) secure: bool,
    pub(crate) problems: Vec<String>,
}

impl Settings {
    /// Reads file and environment.
    pub(crate) fn load() -> Settings {
        // SAFETY: no arguments; reads the auxiliary vector.
        let secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
        let mut settings = Settings {
            secure,
            ..Settings::default()
        };
        let (paths, named) = config_paths(secure);
        for path in paths {
            match std::fs::read_to_string(&path) {
                Ok(text) => {
                    settings.read_file(&path.display().to_string(), &text);
                    break;
                }
                // A shortage is told where it ends the call; it is no mistake of the settings.
                Err(error) if crate::error::is_shortage(&error) => {}
                Err(error) if named || error.kind() != std::io::ErrorKind::NotFound => {
                    let path = path.display();
                    settings.problems.push(format!(
                        "the configuration file {path} cannot be read: {error}; VIPL_CONFIG names it, or it is one of the usual ones"
                    ));
                }
                Err(_) => {}
            }
        }
        if !secure {
            settings.read_environment(
                std::env::vars_os()
                    .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
            );
        }
        settings
    }

    /// What a file and variables come to.
    #[cfg(fuzzing)]
    pub(crate) fn of(file: &str, variables: impl Iterator<Item = (String, String)>) -> Settings {
        let mut settings = Settings::default();
        settings.read_file("file", file);
        settings.read_environment(variables);
        settings
    }

    /// Logs what was wrong with file and environment; the log itself needs the settings first.
    pub(crate) fn report(&self) {
        for problem in &self.problems {
            log::warn!(target: "settings", "{problem}");
        }
    }

    fn read_file(&mut self, path: &str, text: &str) {
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                self.problems.push(format!("{path}: {error}"));
                return;
            }
        };
        for (key, value) in table {
            match value {
                toml::Value::Table(map) if key == "device_map" => {
                    for (name, target) in map {
                        match target.as_str() {
                            Some(target) => self.file_device_map.push((name, target.to_owned())),
                            None => self
                                .problems
                                .push(format!("{path}: device_map.{name} is not a string")),
                        }
                    }
                }
                toml::Value::Table(table) => {
                    for (name, value) in table {
                        self.set_from_file(path, format!("{key}.{name}"), &value);
                    }
                }
                value => self.set_from_file(path, key, &value),
            }
        }
    }

    fn set_from_file(&mut self, path: &str, name: String, value: &toml::Value) {
        let text = match value {
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(truth) => truth.to_string(),
            _ => {
                self.problems.push(format!(
                    "{path}: {name} must be a string, a number or a boolean"
                ));
                return;
            }
        };
        if !name.contains('.') && declared(&name).is_none() {
            self.problems
                .push(format!("{path}: there is no setting {name}"));
            return;
        }
        self.values.insert(name, (text, Source::File));
    }

    fn read_environment(&mut self, variables: impl Iterator<Item = (String, String)>) {
        let mut exactly_given = Vec::new();
        for (key, value) in variables {
            let Some(name) = key.strip_prefix("VIPL_") else {
                continue;
            };
            let name = name.to_ascii_lowercase();
            if matches!(name.as_str(), "config" | "library" | "device") {
                continue;
            }
            let mut known = named(&name).peekable();
            match known.peek() {
                Some(_) => {
                    for setting in known {
                        let value = (value.clone(), Source::Environment);
                        // The longer name is the more exact one, whatever the order.
                        let exact = setting.replace('.', "_") == name;
                        if exact || !exactly_given.contains(&setting) {
                            self.values.insert(setting.to_owned(), value);
                        }
                        if exact {
                            exactly_given.push(setting);
                        }
                    }
                }
                // A plug-in that is not part of the project: VIPL_PLUGIN_KEY.
                None => {
                    if let Some((plugin, rest)) = name.split_once('_') {
                        let full = format!("{plugin}.{rest}");
                        self.values.insert(full, (value, Source::Environment));
                    }
                    self.problems
                        .push(format!("{key} is not a setting of this library"));
                }
            }
        }
    }

    /// The value as it was given, or the default.
    pub(crate) fn text(&self, name: &str) -> &str {
        match self.values.get(name) {
            Some((text, _)) => text,
            None => declared(name).map_or("", |setting| setting.default),
        }
    }

    /// The value if it was given at all.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(|(text, _)| text.as_str())
    }

    /// Where the value came from.
    pub(crate) fn source(&self, name: &str) -> Source {
        self.values
            .get(name)
            .map_or(Source::Default, |(_, source)| *source)
    }

    fn truth(&self, name: &str) -> bool {
        text::truth(self.text(name)).unwrap_or_else(|| {
            let default = declared(name).map_or("", |setting| setting.default);
            log::warn!(target: "settings", "{name}: {:?} is neither true nor false; using {default}", self.text(name));
            default == "true"
        })
    }

    /// A number, within bounds.
    pub(crate) fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> u64 {
        let text = self.text(name);
        let default = declared(name)
            .and_then(|setting| setting.default.parse().ok())
            .unwrap_or(0);
        match text.parse::<u64>() {
            Ok(number) if range.contains(&number) => number,
            _ => {
                log::warn!(
                    target: "settings",
                    "{name}: {text:?} is not a number from {} to {}; using {default}",
                    range.start(),
                    range.end()
                );
                default
            }
        }
    }

    /// A leniency of the compatible mode: its own setting, else the mode decides (spec §17).
    fn lenient(&self, name: &str) -> bool {
        if self.given(name).is_some() {
            self.truth(name)
        } else {
            !self.strict()
        }
    }

    pub(crate) fn strict(&self) -> bool {
        self.truth("strict")
    }
    pub(crate) fn null_ptag(&self) -> bool {
        self.lenient("null_ptag")
    }
    pub(crate) fn null_mem_attributes(&self) -> bool {
        self.lenient("null_mem_attributes")
    }
    pub(crate) fn lenient_destroy(&self) -> bool {
        self.lenient("lenient_destroy")
    }
    pub(crate) fn carry_unflagged_immediate(&self) -> bool {
        self.lenient("carry_unflagged_immediate")
    }
    pub(crate) fn check_descriptor_memory(&self) -> bool {
        self.exact("check_descriptor_memory")
    }
    pub(crate) fn check_receive_whole(&self) -> bool {
        self.exact("check_receive_whole")
    }
    /// A check of the strict mode: its own setting, else the mode decides.
    fn exact(&self, name: &str) -> bool {
        if self.given(name).is_some() {
            self.truth(name)
        } else {
            self.strict()
        }
    }
    pub(crate) fn connect_grace_ms(&self) -> u64 {
        self.by_mode("connect_grace_ms")
    }
    pub(crate) fn disconnect_notice_ms(&self) -> u64 {
        self.by_mode("disconnect_notice_ms")
    }
    fn by_mode(&self, name: &str) -> u64 {
        if self.strict() && self.given(name).is_none() {
            0
        } else {
            self.number(name, 0..=3_600_000)
        }
    }
    pub(crate) fn on_bug_abort(&self) -> bool {
        self.text("on_bug") == "abort"
    }
}

/// The settings that a variable `VIPL_NAME` names: one by its whole name, else those of all plug-ins that
/// have a setting of this name.
fn named(name: &str) -> impl Iterator<Item = &'static str> {
    let whole = |setting: &Declared| setting.name.replace('.', "_") == name;
    let exact = DECLARED.iter().any(whole);
    DECLARED
        .iter()
        .map(|setting| setting.name)
        .filter(move |setting| {
            if exact {
                setting.replace('.', "_") == name
            } else {
                setting
                    .split_once('.')
                    .is_some_and(|(_, last)| last == name)
            }
        })
}

fn declared(name: &str) -> Option<&'static Declared> {
    DECLARED.iter().find(|setting| setting.name == name)
}

/// Where the configuration file may be, and whether the user has named it.
fn config_paths(secure: bool) -> (Vec<PathBuf>, bool) {
    let mut paths = Vec::new();
    if !secure {
        if let Some(path) = std::env::var_os("VIPL_CONFIG") {
            return (vec![path.into()], true);
        }
        match (
            std::env::var_os("XDG_CONFIG_HOME"),
            std::env::var_os("HOME"),
        ) {
            (Some(config), _) if !config.is_empty() => {
                paths.push(PathBuf::from(config).join("vipl/vipl.conf"));
            }
            (_, Some(home)) => paths.push(PathBuf::from(home).join(".config/vipl/vipl.conf")),
            _ => {}
        }
    }
    paths.push("/etc/vipl/vipl.conf".into());
    (paths, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_environment(variables: &[(&str, &str)]) -> Settings {
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
        assert_eq!(settings.number("spin_us", 0..=100), 7);
        assert_eq!(settings.text("loopback.single_copy"), "false");
        assert_eq!(
            settings.file_device_map,
            [("via_eth0".to_owned(), "loopback:".to_owned())]
        );
        settings.read_environment([("VIPL_STRICT".to_owned(), "no".to_owned())].into_iter());
        assert!(!settings.strict());
        assert_eq!(settings.source("strict"), Source::Environment);
    }

    #[test]
    fn a_name_of_several_plugins_reaches_all_of_them() {
        let given = |settings: &Settings, name: &str| settings.given(name).map(str::to_owned);
        let settings = from_environment(&[("VIPL_RECEIVE_FRAMES", "512")]);
        for name in ["tulip.receive_frames", "gnic2.receive_frames"] {
            assert_eq!(given(&settings, name).as_deref(), Some("512"), "{name}");
        }
        for order in [[0, 1], [1, 0]] {
            let variables = [("VIPL_SINGLE_COPY", "no"), ("VIPL_CLAN_SINGLE_COPY", "yes")];
            let settings = from_environment(&order.map(|n: usize| variables[n]));
            let two = ["loopback.single_copy", "clan.single_copy"].map(|n| given(&settings, n));
            assert_eq!(two, [Some("no".to_owned()), Some("yes".to_owned())]);
        }
    }

    #[test]
    fn mistakes_are_told() {
        let mut settings = from_environment(&[("VIPL_STRIKT", "1")]);
        assert_eq!(settings.problems.len(), 1);
        settings.read_file("t", "nonsense = 1\n");
        settings.read_file("t", "= 1\n");
        assert_eq!(settings.problems.len(), 3);
    }
}

//! Settings: declared once, read from the configuration file and then from the environment.
//!
//! The name `connect_grace_ms` is `VIPL_CONNECT_GRACE_MS` in the environment. Settings of a plug-in are
//! named `plugin.key`: a table `[plugin]` in the file, `VIPL_KEY` or `VIPL_PLUGIN_KEY` in the
//! environment. `VIPL_KEY` reaches every plug-in that declares `key`. What plug-ins declare is known when they
//! have been loaded; names that nobody declares are told then. With raised privileges (`AT_SECURE`) neither file path nor environment is heeded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use vipl_plugin_abi::text;

use crate::sync::Mutex;

mod declared;

#[cfg(test)]
use declared::Kind;
pub(crate) use declared::{BadDeclaration, DECLARED, Declared, of_plugin};

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
    /// Variables that are no setting of the library, in lower case and without `VIPL_`: those of plug-ins.
    variables: BTreeMap<String, String>,
    /// What each plug-in declares.
    plugins: Mutex<BTreeMap<String, Vec<Declared>>>,
    /// Names that nobody declares, of which there was a line.
    told: Mutex<BTreeSet<String>>,
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
        for (key, value) in variables {
            let Some(name) = key.strip_prefix("VIPL_") else {
                continue;
            };
            let name = name.to_ascii_lowercase();
            if matches!(name.as_str(), "config" | "library" | "device") {
                continue;
            }
            if declared(&name).is_some() {
                self.values.insert(name, (value, Source::Environment));
            } else {
                self.variables.insert(name, value);
            }
        }
    }

    /// A plug-in declares its settings.
    pub(crate) fn declare(&self, plugin: &str, settings: Vec<Declared>) {
        self.plugins.lock().insert(plugin.to_owned(), settings);
    }

    /// A setting of a plug-in as it was given, and where: the longer name of a variable is the more exact one.
    fn of_plugin(&self, plugin: &str, key: &str) -> Option<(&str, Source)> {
        let variable = self.variables.get(&format!("{plugin}_{key}"));
        match variable.or_else(|| self.variables.get(key)) {
            Some(value) => Some((value, Source::Environment)),
            None => {
                let (value, source) = self.values.get(&format!("{plugin}.{key}"))?;
                Some((value, *source))
            }
        }
    }

    /// What a plug-in gets when it asks for a setting: one of its own, or one of the library that was given.
    pub(crate) fn for_plugin(&self, plugin: &str, key: &str) -> Option<String> {
        let own = self.plugins.lock().get(plugin).and_then(|list| {
            let found = list.iter().find(|setting| setting.name == key);
            found.cloned()
        });
        let mut given = self.of_plugin(plugin, key).map(|(text, _)| text);
        let (kind, default) = match own {
            Some(own) => (own.kind, own.default),
            None => {
                given = given.or_else(|| self.given(key));
                (declared(key)?.kind, None)
            }
        };
        if let Some(given) = given {
            let value = kind.read(given);
            if value.is_some() {
                return value;
            }
            let expected = kind.expected();
            log::warn!(target: "settings", "{plugin}: {key}: {given:?} is not {expected}; using the default");
        }
        default.and_then(|default| kind.read(default))
    }

    /// Every setting of a plug-in that is loaded: its full name, and its value as people write it.
    pub(crate) fn of_plugins(&self) -> Vec<(String, Declared, String, Source)> {
        let plugins = self.plugins.lock();
        let all = plugins.iter().flat_map(|(plugin, list)| {
            list.iter().map(move |setting| {
                let default = (setting.default.unwrap_or_default(), Source::Default);
                let (value, source) = self.of_plugin(plugin, setting.name).unwrap_or(default);
                let name = format!("{plugin}.{}", setting.name);
                (name, setting.clone(), value.to_owned(), source)
            })
        });
        all.collect()
    }

    /// Tells of names that neither the library nor a plug-in declares, of each once. `unknown` are plug-ins
    /// that were found and are not used: nobody knows what these declare.
    pub(crate) fn report_undeclared(&self, unknown: &[String]) {
        for problem in self.undeclared(unknown) {
            log::warn!(target: "settings", "{problem}");
        }
    }

    fn undeclared(&self, unknown: &[String]) -> Vec<String> {
        let plugins = self.plugins.lock();
        let has = |plugin: &str, key: &str| {
            let own = plugins.get(plugin).into_iter().flatten();
            declared(key).is_some() || own.into_iter().any(|setting| setting.name == key)
        };
        let mut problems = Vec::new();
        let mut told = self.told.lock();
        for name in self.variables.keys() {
            let known = plugins.iter().any(|(plugin, list)| {
                let exact = name.strip_prefix(plugin.as_str());
                let exact = exact.and_then(|rest| rest.strip_prefix('_'));
                exact.is_some_and(|key| has(plugin, key))
                    || list.iter().any(|setting| setting.name == name)
            });
            let excused = unknown
                .iter()
                .any(|plugin| name.starts_with(plugin.as_str()));
            if !known && !excused && told.insert(name.clone()) {
                let key = name.to_ascii_uppercase();
                problems.push(format!(
                    "VIPL_{key} is not a setting of this library or of a plug-in"
                ));
            }
        }
        for name in self.values.keys() {
            if let Some((plugin, key)) = name.split_once('.')
                && plugins.contains_key(plugin)
                && !has(plugin, key)
                && told.insert(name.clone())
            {
                problems.push(format!(
                    "the configuration file: there is no setting {name}"
                ));
            }
        }
        problems
    }

    /// The value as it was given, or the default.
    pub(crate) fn text(&self, name: &str) -> &str {
        match self.values.get(name) {
            Some((text, _)) => text,
            None => declared(name)
                .and_then(|setting| setting.default)
                .unwrap_or_default(),
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
            let default = declared(name).and_then(|setting| setting.default).unwrap_or_default();
            log::warn!(target: "settings", "{name}: {:?} is neither true nor false; using {default}", self.text(name));
            default == "true"
        })
    }

    /// A number, within bounds.
    pub(crate) fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> u64 {
        let text = self.text(name);
        let default = declared(name)
            .and_then(|setting| setting.default?.parse().ok())
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

    /// Two plug-ins, which both declare `frames`; `first` has a switch and a size as well.
    fn with_plugins(settings: &Settings) {
        let setting = |name, kind, default| Declared {
            name,
            kind,
            default,
            help: "",
        };
        let frames = setting("frames", Kind::Number("frames", 32, 1024), Some("256"));
        let switch = setting("switch", Kind::Boolean, Some("true"));
        let room = setting("room", Kind::Bytes(0, 1 << 20), None);
        settings.declare("first", vec![frames.clone(), switch, room]);
        settings.declare("second", vec![frames]);
    }

    #[test]
    fn a_name_of_several_plugins_reaches_all_of_them() {
        let settings = from_environment(&[("VIPL_FRAMES", "512")]);
        with_plugins(&settings);
        for plugin in ["first", "second"] {
            assert_eq!(
                settings.for_plugin(plugin, "frames").as_deref(),
                Some("512")
            );
        }
        let settings = from_environment(&[("VIPL_FRAMES", "512"), ("VIPL_SECOND_FRAMES", "64")]);
        with_plugins(&settings);
        let two = ["first", "second"].map(|plugin| settings.for_plugin(plugin, "frames"));
        assert_eq!(two, [Some("512".to_owned()), Some("64".to_owned())]);
        assert!(settings.undeclared(&[]).is_empty());
    }

    #[test]
    fn plugins_get_values_of_the_kind_that_they_declare() {
        let variables = [
            ("VIPL_SWITCH", "OFF"),
            ("VIPL_ROOM", "64k"),
            ("VIPL_FRAMES", "7"),
        ];
        let settings = from_environment(&variables);
        with_plugins(&settings);
        let value = |key: &str| settings.for_plugin("first", key);
        assert_eq!(value("switch").as_deref(), Some("0"));
        assert_eq!(value("room").as_deref(), Some("65536"));
        assert_eq!(value("frames").as_deref(), Some("256"), "7 is too small");
        let settings = from_environment(&[]);
        with_plugins(&settings);
        assert_eq!(settings.for_plugin("first", "switch").as_deref(), Some("1"));
        assert_eq!(settings.for_plugin("first", "room"), None);
        assert_eq!(settings.for_plugin("second", "room"), None, "not declared");
    }

    #[test]
    fn plugins_get_settings_of_the_library_that_were_given() {
        let settings = from_environment(&[]);
        assert_eq!(settings.for_plugin("first", "max_transfer_size"), None);
        let mut settings = from_environment(&[("VIPL_MAX_TRANSFER_SIZE", "1M")]);
        settings.read_file("t", "[second]\nmax_transfer_size = \"64k\"\n");
        let two =
            ["first", "second"].map(|plugin| settings.for_plugin(plugin, "max_transfer_size"));
        assert_eq!(two, [Some("1048576".to_owned()), Some("65536".to_owned())]);
    }

    #[test]
    fn mistakes_are_told() {
        let mut settings = from_environment(&[("VIPL_STRIKT", "1"), ("VIPL_OTHER_FRAMES", "1")]);
        settings.read_file("t", "nonsense = 1\n");
        settings.read_file("t", "= 1\n");
        assert_eq!(settings.problems.len(), 2);
        settings.read_file("t", "[first]\nfrrames = 1\n[absent]\nkey = 1\n");
        with_plugins(&settings);
        // Of a plug-in that is there but not used nobody knows the settings.
        let told = settings.undeclared(&["other".to_owned()]);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].contains("VIPL_STRIKT") && told[1].contains("first.frrames"));
        assert!(
            settings.undeclared(&["other".to_owned()]).is_empty(),
            "once"
        );
    }
}

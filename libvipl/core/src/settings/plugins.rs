//! Settings of plug-ins: declared ones, as given, and undeclared names.

use super::declared::Declared;
use super::{Settings, Source, declared};

impl Settings {
    /// Stores the declarations of a plug-in.
    pub(crate) fn declare(&self, plugin: &str, settings: Vec<Declared>) {
        self.plugins.lock().insert(plugin.to_owned(), settings);
    }

    /// A setting of a plug-in as given, and its source: the longer name of a variable takes precedence.
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

    /// The value for a plug-in that requests a setting: one of its own, or a given one of the library.
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

    /// Every setting of a plug-in that is loaded: its full name, and its value as given.
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

    /// Logs names that neither the library nor a plug-in declares, each once. `unknown`: plug-ins that were
    /// found but not loaded, whose declarations are not known.
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
        let mut reported = self.reported.lock();
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
            if !known && !excused && reported.insert(name.clone()) {
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
                && reported.insert(name.clone())
            {
                problems.push(format!(
                    "the configuration file: there is no setting {name}"
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::super::declared::Kind;
    use super::super::tests::from_environment;
    use super::*;

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
    fn mistakes_are_reported() {
        let mut settings = from_environment(&[("VIPL_STRIKT", "1"), ("VIPL_OTHER_FRAMES", "1")]);
        settings.read_file("t", "nonsense = 1\n");
        settings.read_file("t", "= 1\n");
        assert_eq!(settings.problems.len(), 2);
        settings.read_file("t", "[first]\nfrrames = 1\n[absent]\nkey = 1\n");
        with_plugins(&settings);
        // The settings of a plug-in that is installed but not loaded are not known.
        let reported = settings.undeclared(&["other".to_owned()]);
        assert_eq!(reported.len(), 2, "{reported:?}");
        assert!(reported[0].contains("VIPL_STRIKT") && reported[1].contains("first.frrames"));
        assert!(
            settings.undeclared(&["other".to_owned()]).is_empty(),
            "once"
        );
    }
}

//! Reading the configuration file and the environment.

use std::path::PathBuf;

use super::{Settings, Source, declared};

/// Longest configuration file.
const FILE_BYTES_MAX: usize = 1 << 20;

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
            match vipl_sys::file::read_text(&path, FILE_BYTES_MAX) {
                Ok(text) => {
                    settings.read_file(&path.display().to_string(), &text);
                    break;
                }
                // A shortage is reported where it ends the call; it is not an error of the settings.
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

    /// The settings from a file and variables.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn of(file: &str, variables: impl Iterator<Item = (String, String)>) -> Settings {
        let mut settings = Settings::default();
        settings.read_file("file", file);
        settings.read_environment(variables);
        settings
    }

    pub(super) fn read_file(&mut self, path: &str, text: &str) {
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

    pub(super) fn read_environment(&mut self, variables: impl Iterator<Item = (String, String)>) {
        for (key, value) in variables {
            let Some(name) = key.strip_prefix("VIPL_") else {
                continue;
            };
            let name = name.to_ascii_lowercase();
            // These are read elsewhere: by this library before the settings exist, by the tools, and by
            // `vipl_sys` in test builds.
            let for_tests = cfg!(debug_assertions) && name.starts_with("test_");
            if for_tests || matches!(name.as_str(), "config" | "library" | "device") {
                continue;
            }
            if declared(&name).is_some() {
                self.values.insert(name, (value, Source::Environment));
            } else {
                self.variables.insert(name, value);
            }
        }
    }
}

/// Possible paths of the configuration file, and whether the user has named one.
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

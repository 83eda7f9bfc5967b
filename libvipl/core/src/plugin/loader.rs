//! The plug-ins of the process.
//!
//! The folders are scanned at every VipOpenNic, so an added file takes effect at once. Each refusal is logged
//! once, with the file, the expected and the found value; other files are still loaded.
//!
//! ```text
//!   map ─▶ loader ─▶ folders        which files there are
//!             └────▶ file           one file: checked, opened, initialised
//!                      └─▶ loaded   the result
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use vipl_plugin_abi::vipl_host;
use vipl_sys::reserve::has_memory;

use super::file::{Refusal, load};
use super::folders::{candidates, directories, name_of, shortage_of, wanted};
use super::loaded::LoadedPlugin;
use crate::error::is_shortage;
use crate::settings::Settings;

/// Whether the folder of a file is in the setting `plugin_path`.
fn is_named(settings: &Settings, path: &Path) -> bool {
    let mut named = settings.text("plugin_path").split(':').map(Path::new);
    named.any(|folder| path.parent() == Some(folder))
}

/// One examined file.
pub(crate) struct Seen {
    modified: Option<SystemTime>,
    pub(crate) outcome: Result<&'static LoadedPlugin, Refusal>,
}

/// All plug-ins of the process.
#[derive(Default)]
pub(crate) struct Plugins {
    pub(crate) seen: BTreeMap<PathBuf, Seen>,
    /// The resource that the system lacked at the last scan, if any: plug-ins may have been missed.
    pub(crate) shortage: Option<String>,
    /// Folders of the last scan, and plug-ins excluded by the setting `plugins`.
    pub(crate) searched: Vec<PathBuf>,
    pub(crate) left_out: Vec<String>,
    /// Unreadable folders that have been logged.
    unreadable: BTreeSet<PathBuf>,
    order: Vec<&'static LoadedPlugin>,
}

impl Plugins {
    /// Scans the folders and returns the usable plug-ins; the first file of a name takes precedence.
    pub(crate) fn refresh(
        &mut self,
        settings: &Settings,
        host: &'static vipl_host,
    ) -> &[&'static LoadedPlugin] {
        self.shortage = None;
        self.left_out.clear();
        self.searched = directories(settings);
        let given = settings.text("plugin_path");
        for directory in self.searched.clone() {
            let found = candidates(&directory).unwrap_or_else(|error| {
                self.cannot_read(&directory, given, &error);
                Vec::new()
            });
            for (name, path) in found {
                if !wanted(settings.text("plugins"), &name) {
                    self.left_out.push(name);
                } else if !self.order.iter().any(|plugin| plugin.name == name) {
                    self.consider(&name, path, settings, host);
                }
            }
        }
        settings.report_undeclared(&self.unknown());
        &self.order
    }

    /// Handles an unreadable folder. The standard ones need not exist; one named by the user should.
    fn cannot_read(&mut self, directory: &Path, given: &str, error: &io::Error) {
        if is_shortage(error) {
            self.shortage = Some(format!("{}: {error}", directory.display()));
            return;
        }
        let named = given.split(':').any(|name| Path::new(name) == directory);
        let strange = named || error.kind() != io::ErrorKind::NotFound;
        if strange && self.unreadable.insert(directory.to_owned()) {
            let setting = if named { " (setting plugin_path)" } else { "" };
            log::warn!(
                target: "plugin",
                "no plug-ins from the folder {}{setting}: {error}", directory.display()
            );
        }
    }

    /// Plug-ins that were found but not loaded.
    fn unknown(&self) -> Vec<String> {
        let refused = self.seen.iter().filter(|(_, seen)| seen.outcome.is_err());
        let refused = refused.filter_map(|(path, _)| name_of(path.file_name()?.to_str()?));
        refused
            .map(str::to_owned)
            .chain(self.left_out.clone())
            .collect()
    }

    fn consider(
        &mut self,
        name: &str,
        path: PathBuf,
        settings: &Settings,
        host: &'static vipl_host,
    ) {
        let modified = path.metadata().and_then(|data| data.modified()).ok();
        // A refused file is tried again if it has changed, or if the system lacked a resource.
        let before = self.seen.get(&path);
        let said = match before.filter(|seen| seen.modified == modified) {
            Some(Seen {
                outcome: Err(Refusal::Load(text)),
                ..
            }) => Some(text.clone()),
            Some(_) => return,
            None => None,
        };
        if !has_memory() {
            self.shortage = Some("there is no memory".to_owned());
            return;
        }
        let outcome = load(name, &path, settings, host);
        if let Err(Refusal::Load(text)) = &outcome
            && let Some(shortage) = shortage_of(&path, text)
        {
            // The file is not at fault: it is tried again even if it does not change.
            self.shortage = Some(shortage);
            return;
        }
        match &outcome {
            Err(Refusal::Load(text)) if said.as_ref() == Some(text) => {}
            Ok(plugin) => {
                log::info!(target: "plugin", "{name} {} from {}", plugin.version, path.display());
                self.order.push(plugin);
            }
            // A machine may have programs of both kinds, each with its own plug-ins.
            Err(Refusal::Class(_)) if !is_named(settings, &path) => {
                log::info!(target: "plugin", "{} is for programs of the other word size", path.display());
            }
            Err(refusal) => {
                log::warn!(target: "plugin", "{} refused: {refusal}", path.display());
            }
        }
        self.seen.insert(path, Seen { modified, outcome });
    }

    /// The plug-in of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&'static LoadedPlugin> {
        self.order
            .iter()
            .find(|plugin| plugin.name == name)
            .copied()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.order
            .iter()
            .map(|plugin| plugin.name.as_str())
            .collect()
    }
}

//! The plug-ins of the process.
//!
//! The folders are looked through at every VipOpenNic, so a file that was dropped in counts at once. Each refusal
//! says the file, what was expected and what was found, once; the others go on.
//!
//! ```text
//!   map ─▶ loader ─▶ folders        which files there are
//!             └────▶ file           one file: checked, opened, initialised
//!                      └─▶ loaded   what came of it
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

/// One file that was looked at.
pub(crate) struct Seen {
    modified: Option<SystemTime>,
    pub(crate) outcome: Result<&'static LoadedPlugin, Refusal>,
}

/// All plug-ins of the process.
#[derive(Default)]
pub(crate) struct Plugins {
    pub(crate) seen: BTreeMap<PathBuf, Seen>,
    /// What the system had too little of at the last look, if anything: there may be plug-ins unseen.
    pub(crate) shortage: Option<String>,
    /// Folders of the last look, and plug-ins that the setting `plugins` has left out.
    pub(crate) searched: Vec<PathBuf>,
    pub(crate) left_out: Vec<String>,
    /// Folders that cannot be read, of which there was a line.
    unreadable: BTreeSet<PathBuf>,
    order: Vec<&'static LoadedPlugin>,
}

impl Plugins {
    /// Looks through the directories and gives the usable plug-ins, first of a name first.
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

    /// A folder cannot be read. The usual ones need not be there; one that the user has named should.
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

    /// Plug-ins that were found and are not used.
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
        // A refused file is tried again when it has changed. What the system could not load it may load now.
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
            // No fault of the file: it is tried again, whether it changes or not.
            self.shortage = Some(shortage);
            return;
        }
        match &outcome {
            Err(Refusal::Load(text)) if said.as_ref() == Some(text) => {}
            Ok(plugin) => {
                log::info!(target: "plugin", "{name} {} from {}", plugin.version, path.display());
                self.order.push(plugin);
            }
            // A machine may have programs of both kinds, each with plug-ins of its own.
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

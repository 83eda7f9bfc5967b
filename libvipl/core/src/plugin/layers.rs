//! The layers of the process: found in the folders of plug-ins, loaded in the order in which they are given.
//!
//! A layer that cannot be loaded is left out, with a line in the log: a tool for looking at a program must not be what
//! keeps it from running ([decision 129](../../../../docs/decisions/0129-layers-between-entry-points-and-core.md)).

use std::path::PathBuf;

use vipl_plugin_abi::*;

use super::file::load_layer;
use super::folders::{self, directories, layer};
use crate::settings::Settings;

/// Layers of one process at most.
pub(crate) const LAYERS_MAX: usize = 8;

/// A loaded layer.
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) path: PathBuf,
    pub(crate) ops: vipl_layer,
}

/// The layers of a process, the outermost one first.
pub(crate) struct Layers {
    loaded: Vec<Layer>,
    /// Names that were given, and why there is no such layer.
    left_out: Vec<(String, String)>,
}

impl Layers {
    /// Loads those that the setting `layers` names.
    pub(crate) fn load(settings: &Settings, host: &'static vipl_layer_host) -> Layers {
        let (mut loaded, mut left_out): (Vec<Layer>, Vec<(String, String)>) = Default::default();
        let given = settings.text("layers").split(',').map(str::trim);
        for name in given.filter(|name| !name.is_empty()) {
            if loaded.iter().any(|layer| layer.name == name) {
                log::warn!(target: "layer", "layers: {name} is given twice; it is used once");
            } else if loaded.len() == LAYERS_MAX {
                log::error!(target: "layer", "layers: {name} is left out: {LAYERS_MAX} layers at most");
                left_out.push((name.to_owned(), format!("{LAYERS_MAX} layers at most")));
            } else {
                match load(name, settings, host) {
                    Ok(layer) => {
                        log::info!(target: "layer", "{} {}", layer.name, layer.version);
                        loaded.push(layer);
                    }
                    Err(reason) => left_out.push((name.to_owned(), reason)),
                }
            }
        }
        Layers { loaded, left_out }
    }

    pub(crate) fn list(&self) -> &[Layer] {
        &self.loaded
    }

    pub(crate) fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }
}

/// Name and path of each layer in the folders of plug-ins, whether it is used or not.
pub(crate) fn in_folders(settings: &Settings) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for (name, path) in directories(settings)
        .iter()
        .flat_map(|folder| folders::layers(folder))
    {
        // The first folder that has one of this name counts.
        if !found.iter().any(|(known, _)| *known == name) {
            found.push((name, path));
        }
    }
    found.sort();
    found
}

/// The reason why there is none is in the log.
fn load(name: &str, settings: &Settings, host: &'static vipl_layer_host) -> Result<Layer, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let path = match name.chars().all(is_plain) {
        true => layer(settings, name),
        false => None,
    };
    let Some(path) = path else {
        let folders = directories(settings);
        let folders: Vec<_> = folders
            .iter()
            .map(|folder| folder.to_string_lossy())
            .collect();
        let folders = folders.join(", ");
        log::error!(
            target: "layer",
            "the layer {name:?} is left out: there is no file libvipl_layer_{name}.so in {folders}"
        );
        return Err(format!("no file libvipl_layer_{name}.so in {folders}"));
    };
    match load_layer(name, &path, settings, host) {
        Ok((version, ops)) => Ok(Layer {
            name: name.to_owned(),
            version,
            path,
            ops,
        }),
        Err(refusal) => {
            log::error!(target: "layer", "the layer {name} is left out: {} refused: {refusal}", path.display());
            Err(format!("{} refused: {refusal}", path.display()))
        }
    }
}

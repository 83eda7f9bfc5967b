//! The layers of the process: found in the folders of plug-ins, loaded in the order in which they are given.
//!
//! A layer that cannot be loaded is left out, with a line in the log: a tool for looking at a program must not be what
//! keeps it from running ([decision 129](../../../../docs/decisions/0129-layers-between-entry-points-and-core.md)).

use vipl_plugin_abi::*;

use super::file::load_layer;
use super::folders::{directories, layer};
use crate::settings::Settings;

/// Layers of one process at most.
pub(crate) const LAYERS_MAX: usize = 8;

/// A loaded layer.
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) ops: vipl_layer,
}

/// The layers of a process, the outermost one first.
pub(crate) struct Layers(Vec<Layer>);

impl Layers {
    /// Loads those that the setting `layers` names.
    pub(crate) fn load(settings: &Settings, host: &'static vipl_layer_host) -> Layers {
        let mut loaded: Vec<Layer> = Vec::new();
        let given = settings.text("layers").split(',').map(str::trim);
        for name in given.filter(|name| !name.is_empty()) {
            if loaded.iter().any(|layer| layer.name == name) {
                log::warn!(target: "layer", "layers: {name} is given twice; it is used once");
            } else if loaded.len() == LAYERS_MAX {
                log::error!(target: "layer", "layers: {name} is left out: {LAYERS_MAX} layers at most");
            } else if let Some(layer) = load(name, settings, host) {
                log::info!(target: "layer", "{} {}", layer.name, layer.version);
                loaded.push(layer);
            }
        }
        Layers(loaded)
    }

    pub(crate) fn list(&self) -> &[Layer] {
        &self.0
    }
}

fn load(name: &str, settings: &Settings, host: &'static vipl_layer_host) -> Option<Layer> {
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
        log::error!(
            target: "layer",
            "the layer {name:?} is left out: there is no file libvipl_layer_{name}.so in {}",
            folders.join(", ")
        );
        return None;
    };
    match load_layer(name, &path, settings, host) {
        Ok((version, ops)) => Some(Layer {
            name: name.to_owned(),
            version,
            ops,
        }),
        Err(refusal) => {
            log::error!(target: "layer", "the layer {name} is left out: {} refused: {refusal}", path.display());
            None
        }
    }
}

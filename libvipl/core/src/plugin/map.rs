//! Resolution of device names. The first match applies: the environment's map, the file's map, the explicit
//! form `plugin:argument`, the claims of the plug-ins.

use strsim::levenshtein;
use vipl_sys::reserve::has_memory;

use super::host::HOST;
use super::loaded::LoadedPlugin;
use super::loader::Plugins;
use crate::process::Process;

/// The result of resolving a name, and the reason.
pub(crate) struct Route {
    pub(crate) plugin: &'static LoadedPlugin,
    pub(crate) argument: String,
    pub(crate) reason: String,
}

/// Why a name cannot be resolved.
pub(crate) enum Nowhere {
    /// The tried steps.
    Unknown(String),
    /// Not all plug-ins could be examined, because the system lacks a resource.
    Shortage(String),
}

/// Resolves a device name.
pub(crate) fn find(process: &Process, name: &str) -> Result<Route, Nowhere> {
    let mut plugins = process.plugins.lock();
    plugins.refresh(&process.settings, &HOST);
    // Plug-ins are asked for their claims; a thread's first call of one allocates memory.
    if !has_memory() {
        return Err(Nowhere::Shortage("there is no memory".to_owned()));
    }
    look_up(process, &plugins, name).map_err(|tried| match &plugins.shortage {
        Some(shortage) => Nowhere::Shortage(format!("cannot look for plug-ins: {shortage}")),
        None => Nowhere::Unknown(tried),
    })
}

/// The route, or the tried steps.
fn look_up(process: &Process, plugins: &Plugins, name: &str) -> Result<Route, String> {
    let short = plain(name);
    if short.is_empty() {
        return Err("no name follows the folder; vipinfo lists the devices".to_owned());
    }
    let settings = &process.settings;
    let environment = parse_map(settings.text("device_map"));
    let maps = [
        ("the setting device_map", environment),
        ("the configuration file", settings.file_device_map.clone()),
    ];
    for (what, map) in &maps {
        for (from, to) in map {
            if from != "*" && plain(from) != short {
                continue;
            }
            return explicit(plugins, to)
                .map(|(plugin, argument)| Route {
                    plugin,
                    argument,
                    reason: format!("{what} maps {from}"),
                })
                .ok_or_else(|| {
                    no_plugin(
                        process,
                        plugins,
                        to,
                        &format!("{what} maps {from} to {to}, but "),
                    )
                });
        }
    }
    if short.contains(':') {
        return explicit(plugins, short)
            .map(|(plugin, argument)| Route {
                plugin,
                argument,
                reason: "the name contains the plug-in".to_owned(),
            })
            .ok_or_else(|| no_plugin(process, plugins, short, ""));
    }
    match claimed(plugins, short) {
        Some((plugin, argument)) => {
            let reason = format!("the plug-in {} claims {short}", plugin.name);
            Ok(Route {
                plugin,
                argument,
                reason,
            })
        }
        None => Err(format!(
            "no plug-in claims {short:?}; plug-ins: {}{}{}",
            known(process, plugins),
            near_device(plugins, short),
            how_to_map(short)
        )),
    }
}

/// The plug-in that claims a name with the highest rank, and its argument.
pub(crate) fn claimed(plugins: &Plugins, name: &str) -> Option<(&'static LoadedPlugin, String)> {
    let claims = plugins.names().into_iter().filter_map(|plugin| {
        let plugin = plugins.named(plugin)?;
        let (rank, argument) = plugin.claim(name)?;
        Some((rank, plugin, argument))
    });
    let best = claims.max_by_key(|(rank, _, _)| *rank);
    best.map(|(_, plugin, argument)| (plugin, argument))
}

/// The name without the folder of M-VIA's device files; some applications use `/etc/via_lo`.
pub(crate) fn plain(name: &str) -> &str {
    name.strip_prefix("/dev/")
        .or_else(|| name.strip_prefix("/etc/"))
        .unwrap_or(name)
}

/// `plugin:argument`.
fn explicit(plugins: &Plugins, target: &str) -> Option<(&'static LoadedPlugin, String)> {
    let (plugin, argument) = target.split_once(':').unwrap_or((target, ""));
    Some((plugins.named(plugin)?, argument.to_owned()))
}

/// The available plug-ins, and the folders of others.
fn known(process: &Process, plugins: &Plugins) -> String {
    let names = plugins.names();
    let mut text = if names.is_empty() {
        let folders: Vec<_> = plugins.searched.iter().map(|dir| dir.display()).collect();
        let folders: Vec<String> = folders.iter().map(ToString::to_string).collect();
        format!("none found in {}", folders.join(", "))
    } else {
        names.join(", ")
    };
    if !plugins.left_out.is_empty() {
        let mut left_out = plugins.left_out.clone();
        left_out.sort();
        left_out.dedup();
        text += &format!(
            " (the setting plugins, {:?}, leaves out {})",
            process.settings.text("plugins"),
            left_out.join(", ")
        );
    }
    text
}

/// Suggests a device with a similar name, or with this one in small letters.
fn near_device(plugins: &Plugins, asked: &str) -> String {
    let small = asked.to_ascii_lowercase();
    let plugins = plugins
        .names()
        .into_iter()
        .filter_map(|name| plugins.named(name));
    let claimed = plugins
        .clone()
        .any(|plugin| small != asked && plugin.claim(&small).is_some());
    let near = || {
        let devices = plugins.flat_map(LoadedPlugin::devices);
        let mut near: Vec<(usize, String)> = devices
            .map(|device| {
                (
                    levenshtein(plain(&device), &small),
                    plain(&device).to_owned(),
                )
            })
            .filter(|(distance, device)| *distance <= 2 && 2 * distance < device.len())
            .collect();
        near.sort();
        near.into_iter().next().map(|(_, device)| device)
    };
    let found = if claimed { Some(small.clone()) } else { near() };
    found.map_or(String::new(), |device| format!("; did you mean {device}?"))
}

/// The map that resolves a name, if any.
fn how_to_map(name: &str) -> String {
    if name.contains(['=', ';', '*']) || name.trim() != name {
        return "; this name cannot be mapped".to_owned();
    }
    format!("; map it with VIPL_DEVICE_MAP='{name}=PLUGIN:ARGUMENT'")
}

fn no_plugin(process: &Process, plugins: &Plugins, target: &str, before: &str) -> String {
    let asked = target.split(':').next().unwrap_or(target);
    let small = asked.to_ascii_lowercase();
    let near = plugins
        .names()
        .into_iter()
        .find(|name| levenshtein(name, &small) <= 2);
    let hint = near.map_or(String::new(), |name| format!("; did you mean {name}?"));
    format!(
        "{before}there is no plug-in {asked:?}; plug-ins: {}{hint}",
        known(process, plugins)
    )
}

/// `name=plugin:argument` pairs separated by `;`.
pub(crate) fn parse_map(text: &str) -> Vec<(String, String)> {
    text.split(';')
        .map(str::trim)
        .filter(|pair| !pair.is_empty())
        .filter_map(|pair| match pair.split_once('=') {
            Some((name, target)) => Some((name.trim().to_owned(), target.trim().to_owned())),
            None => {
                log::warn!(target: "settings", "device_map: {pair:?} is not name=plugin:argument");
                None
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_their_folder() {
        assert_eq!(plain("/dev/via_lo"), "via_lo");
        assert_eq!(plain("/etc/via_lo"), "via_lo");
        assert_eq!(plain("VINIC"), "VINIC");
    }

    #[test]
    fn a_map_is_pairs() {
        let map = parse_map(" a=loopback: ; *=sim:seed=7;;bad");
        assert_eq!(map[0], ("a".to_owned(), "loopback:".to_owned()));
        assert_eq!(map[1], ("*".to_owned(), "sim:seed=7".to_owned()));
        assert_eq!(map.len(), 2);
    }
}

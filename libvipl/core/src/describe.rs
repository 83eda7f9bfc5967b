//! The state of the library as JSON, for `vipinfo`.

use std::ffi::CStr;

use kagent_proto::{Budget, BudgetList, Op};
use serde_json::{Value, json};

use crate::agent;
use crate::error::Error;
use crate::pages::Pages;
use crate::plugin::host::HOST;
use crate::plugin::layers::in_folders;
use crate::plugin::loaded::LoadedPlugin;
use crate::plugin::map;
use crate::process::{self, Process};
use crate::settings::DECLARED;

/// The document about a topic (see `vipl_describe`).
pub fn topic(topic: &CStr) -> Result<String, Error> {
    let topic = topic.to_str().map_err(|_| Error::InvalidParameter)?;
    let process = process::get();
    let document = match topic.split_once(' ').unwrap_or((topic, "")) {
        ("version", "") => version(process),
        ("settings", "") => settings(process),
        ("plugins", "") => plugins(process),
        ("layers", "") => layers(process),
        ("devices", "") => devices(process),
        ("counters", "") => counters(process),
        ("budgets", "") => budgets(process)?,
        ("map", name) if !name.is_empty() => map(process, name.trim()),
        _ => return Err(Error::InvalidParameter),
    };
    Ok(document.to_string())
}

fn version(process: &Process) -> Value {
    json!({
        "library": env!("CARGO_PKG_VERSION"),
        "path": agent::library_path(),
        "abi": vipl_plugin_abi::VIPL_PLUGIN_ABI_MAJOR,
        "mode": if process.settings.strict() { "strict" } else { "compatible" },
        "agent": process.settings.text("agent"),
    })
}

fn settings(process: &Process) -> Value {
    // Declarations of plug-ins are known once they have been loaded.
    process.plugins.lock().refresh(&process.settings, &HOST);
    let own = DECLARED.iter().map(|setting| {
        let value = process.settings.text(setting.name).to_owned();
        let source = process.settings.source(setting.name);
        (setting.name.to_owned(), setting.clone(), value, source)
    });
    let all = own.chain(process.settings.of_plugins());
    let all = all.map(|(name, setting, value, source)| {
        json!({
            "name": name,
            "type": setting.kind.name(),
            "value": value,
            "default": setting.default.unwrap_or_default(),
            "source": source.name(),
            "help": match setting.kind.range() {
                Some(range) => format!("{}, {range}", setting.help),
                None => setting.help.to_owned(),
            },
        })
    });
    all.collect()
}

fn plugins(process: &Process) -> Value {
    let mut plugins = process.plugins.lock();
    plugins.refresh(&process.settings, &HOST);
    let mut list: Vec<Value> = plugins
        .seen
        .iter()
        .map(|(path, seen)| match &seen.outcome {
            Ok(plugin) => json!({
                "name": plugin.name,
                "version": plugin.version,
                "path": plugin.path,
                "state": "loaded",
            }),
            Err(refusal) => json!({
                "name": path.file_stem().map(|stem| stem.to_string_lossy()),
                "path": path,
                "state": "refused",
                "reason": refusal.to_string(),
            }),
        })
        .collect();
    list.sort_by_key(|plugin| plugin["path"].to_string());
    list.into()
}

/// Those in use, the outermost one first; those that the setting names in vain; and what else there is.
fn layers(process: &Process) -> Value {
    let layers = process.layers.get();
    let used = layers.map_or(&[][..], |layers| layers.list());
    let left_out = layers.map_or(&[][..], |layers| layers.left_out());
    let mut list: Vec<Value> = Vec::new();
    list.extend(used.iter().map(|layer| {
        json!({
            "name": layer.name,
            "version": layer.version,
            "path": layer.path,
            "state": "in use",
        })
    }));
    list.extend(
        left_out
            .iter()
            .map(|(name, reason)| json!({ "name": name, "state": "left out", "reason": reason })),
    );
    let named = |name: &str| {
        used.iter().any(|layer| layer.name == name)
            || left_out.iter().any(|(known, _)| known == name)
    };
    let others = in_folders(&process.settings).into_iter();
    list.extend(
        others
            .filter(|(name, _)| !named(name))
            .map(|(name, path)| json!({ "name": name, "path": path, "state": "not in use" })),
    );
    list.into()
}

fn devices(process: &Process) -> Value {
    let mut plugins = process.plugins.lock();
    let found = plugins.refresh(&process.settings, &HOST).to_vec();
    let list = found.into_iter().flat_map(LoadedPlugin::devices);
    // Another plug-in may have claimed the name.
    let list = list.map(|name| match map::claimed(&plugins, &name) {
        Some((plugin, argument)) => {
            json!({ "name": name, "plugin": plugin.name, "argument": argument })
        }
        None => json!({ "name": name }),
    });
    list.collect()
}

fn counters(process: &Process) -> Value {
    let counters = process.pages_so_far().map(Pages::counters);
    let counters = counters.unwrap_or_default().into_iter();
    Value::Object(counters.map(|(name, value)| (name, value.into())).collect())
}

/// Usage and limits of this process's user at the Kernel Agent.
fn budgets(process: &'static Process) -> Result<Value, Error> {
    let _use = process.agents.begin_use();
    let agent = process.agents.want()?;
    let reply = agent.call(Op::BUDGETS, &(), &[]);
    // An agent of an earlier version does not support the call.
    let list: BudgetList = reply.body().ok_or(Error::NotSupported)?;
    let lines = Budget::ALL.iter().zip(&list.lines);
    let lines = lines.map(|(budget, line)| {
        json!({
            "name": budget.name(),
            "used": line.used,
            "limit": line.limit,
        })
    });
    Ok(json!({
        "user": list.user,
        "agent": format!("{}, {}", agent.description(), agent.owner()),
        "budgets": lines.collect::<Value>(),
    }))
}

fn map(process: &Process, name: &str) -> Value {
    match map::find(process, name) {
        Ok(route) => json!({
            "name": name,
            "plugin": route.plugin.name,
            "argument": route.argument,
            "reason": route.reason,
        }),
        Err(map::Nowhere::Unknown(tried) | map::Nowhere::Shortage(tried)) => {
            json!({ "name": name, "error": tried })
        }
    }
}

//! `vipinfo`: what VIPL finds on this machine, and why.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use serde_json::{Map, Value, json};
use vipl_cli::{Generate, output};
use vipl_client::{Attributes, Library};
use vipl_sys::rdma;
use vipl_tools::answering::{self, Answer};
use vipl_tools::nic::{self, Nic};
use vipl_tools::report::{self, Table};
use vipl_tools::{Error, Result};
use vipl_tools::{host, options, why};

/// Shows the devices that VIPL can open, their limits, and how the library is set up.
#[derive(Parser)]
#[command(
    name = "vipinfo",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0: all is well; 1: no device can be opened, or with --why something does not work; 2: the \
                  command line is wrong; 3: with --why: it works, and something slows or limits it"
)]
struct Options {
    /// Show everything: attributes, settings, plug-ins, counters, RDMA devices, the agent, the library's file and mode
    #[arg(short, long)]
    verbose: bool,

    /// Show one device only
    #[arg(short, long)]
    device: Option<String>,

    /// Show which plug-in serves each device name, and why
    #[arg(short, long, value_name = "NAME", num_args = 1..)]
    map: Vec<String>,

    /// Show the settings: value, default, and the source of the value
    #[arg(short = 'e', long)]
    settings: bool,

    /// Find out why DEVICE, or the way to HOST, does not work or is slow
    #[arg(long, value_names = ["DEVICE", "HOST"], num_args = 0..=2, conflicts_with_all = ["verbose", "device", "map", "settings"])]
    why: Option<Vec<String>>,

    /// Print JSON; everything, unless -d, -m or -e selects less
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    generate: Generate,
}

/// A device, and the result of opening it.
struct Device {
    name: String,
    plugin: Option<String>,
    argument: Option<String>,
    attributes: Result<Attributes>,
}

fn main() -> ExitCode {
    vipl_tools::sys::end_with_the_reader();
    let options = match output::parse::<Options>() {
        Ok(options) => options,
        Err(code) => return code,
    };
    if let Some(code) = options.generate.print::<Options>(1) {
        return code;
    }
    if let Some(asked) = &options.why {
        return why::answer(asked, options.json);
    }
    let done = host::library()
        .and_then(|vipl| run(&options, vipl))
        .and_then(|text| report::print(&text));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report::failed("vipinfo", &error, options.json),
    }
}

fn run(options: &Options, vipl: &'static Library) -> Result<String> {
    // What is named with its plug-in is looked up without the agent, as settings are.
    let asks = match &*options.map {
        [] => !options.settings,
        names => names.iter().any(|name| !name.contains(':')),
    };
    if asks && let Answer::Silent(why) = answering::ask(vipl, "vipinfo") {
        return Err(Error::Usage(format!(
            "the Kernel Agent does not answer: {why}. Devices are not looked at, since the agent does not answer"
        )));
    }
    if !options.map.is_empty() {
        return show_map(options, vipl);
    }
    if options.settings {
        let settings =
            host::describe(vipl, "settings").ok_or_else(|| not_reported("its settings"))?;
        return Ok(if options.json {
            pretty(&settings)
        } else {
            settings_table(&settings)
        });
    }
    let devices = devices(options, vipl);
    let first_reason = devices
        .iter()
        .find_map(|device| device.attributes.as_ref().err());
    if !devices.iter().any(|device| device.attributes.is_ok()) {
        let reason = first_reason.map_or_else(|| "there is none".to_owned(), ToString::to_string);
        let refused = host::describe(vipl, "plugins").map(|plugins| refusals(&plugins));
        let refused = refused.unwrap_or_default();
        return Err(Error::Usage(format!(
            "no device can be opened: {reason}\n{refused}"
        )));
    }
    if options.json {
        return Ok(pretty(&everything(vipl, &devices)));
    }
    let mut text = String::new();
    if options.verbose {
        text += &library_text(vipl);
    }
    for device in &devices {
        text += &device_text(device, options.verbose);
    }
    if options.verbose {
        text += &verbose_text(vipl);
    }
    Ok(text)
}

fn not_reported(what: &str) -> Error {
    Error::Usage(format!(
        "this VIPL library does not report {what}: it has no vipl_describe"
    ))
}

/// The devices that the library names; without its help, the one asked for or the default.
fn devices(options: &Options, vipl: &'static Library) -> Vec<Device> {
    let known = host::describe(vipl, "devices");
    let known = known
        .as_ref()
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let known = default_first(known);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut listed: Vec<Value> = match &options.device {
        None => known,
        Some(name) => {
            let short = |name: &str| name.trim_start_matches("/dev/").to_owned();
            let same = |d: &&Value| d["name"].as_str().is_some_and(|n| short(n) == short(name));
            let found = known.iter().find(same).cloned();
            let mapped = || host::describe(vipl, &format!("map {name}"));
            let mut device = found.or_else(mapped).unwrap_or_else(|| json!({}));
            device["name"] = json!(name);
            vec![device]
        }
    };
    if listed.is_empty() {
        listed.push(json!({"name": options::DEVICE}));
    }
    let open = |device: &Value| {
        let name = text(&device["name"]).unwrap_or_default();
        let attributes = Nic::open(vipl, &name).map(|nic| nic.attributes().clone());
        let (plugin, argument) = (text(&device["plugin"]), text(&device["argument"]));
        Device {
            name,
            plugin,
            argument,
            attributes,
        }
    };
    listed.iter().map(open).collect()
}

/// The default device comes first.
fn default_first(mut devices: Vec<Value>) -> Vec<Value> {
    let default = options::DEVICE.trim_start_matches("/dev/");
    devices.sort_by_key(|device| device["name"].as_str() != Some(default));
    devices
}

fn device_text(device: &Device, verbose: bool) -> String {
    let mut text = format!("{}\n", device.name);
    let mut line = |name: &str, value: &str| text += &format!("  {name:<24}  {value}\n");
    if let Some(plugin) = &device.plugin {
        let argument = device.argument.as_deref().unwrap_or_default();
        line(
            "plug-in",
            format!("{plugin}:{argument}").trim_end_matches(':'),
        );
    }
    match &device.attributes {
        Err(error) => line("cannot be opened", &error.to_string()),
        Ok(attributes) if verbose => {
            for (name, value, unit) in nic::rows(attributes) {
                line(name, format!("{} {unit}", plain(&value)).trim_end());
            }
        }
        Ok(attributes) => {
            let read = attributes.rdma_read.to_string();
            line("address", &nic::address_text(attributes));
            line("reliability levels", &attributes.reliability.to_string());
            line("RDMA Read on", &read);
            line(
                "largest message",
                &format!("{} bytes", attributes.transfer_max),
            );
            line("VIs", &format!("{} at most", attributes.vi_max));
            line(
                "queue",
                &format!("{} descriptors", attributes.descriptors_per_queue_max),
            );
            line(
                "registered memory",
                &format!("{} bytes", attributes.register_bytes_max),
            );
        }
    }
    text.push('\n');
    text
}

fn library_text(vipl: &Library) -> String {
    let version = host::describe(vipl, "version").unwrap_or_else(|| json!({}));
    let say = |name: &str| version[name].as_str().unwrap_or("unknown").to_owned();
    let path = vipl.path().display();
    format!(
        "library\n  {:<24}  {}\n  {:<24}  {path}\n  {:<24}  {}\n  {:<24}  {}\n\n",
        "version",
        say("library"),
        "file",
        "mode",
        say("mode"),
        "setting agent",
        say("agent"),
    )
}

fn verbose_text(vipl: &Library) -> String {
    let mut text = String::new();
    if let Some(plugins) = host::describe(vipl, "plugins") {
        text += &format!("plug-ins\n{}\n", indent(&plugins_table(&plugins)));
    }
    if let Some(layers) = host::describe(vipl, "layers") {
        text += &format!("layers\n{}\n", indent(&layers_table(&layers)));
    }
    if let Some(settings) = host::describe(vipl, "settings") {
        text += &format!("settings\n{}\n", indent(&settings_table(&settings)));
    }
    if let Some(counters) = host::describe(vipl, "counters") {
        let mut table = Table::new(&["<counter", "value"]);
        for (name, value) in counters.as_object().into_iter().flatten() {
            table.row(vec![name.clone(), plain(value)]);
        }
        text += &format!("counters of this process\n{}", indent(&table.text()));
    }
    text += &rdma_text(&rdma_rows(&rdma::devices()));
    if let Some(budgets) = host::describe(vipl, "budgets") {
        let columns = ["name", "used", "limit"];
        let table = rows_table(&budgets["budgets"], &["<budget", "used", "limit"], &columns);
        let user = plain(&budgets["user"]);
        let agent = plain(&budgets["agent"]);
        text += &format!("\nKernel Agent\n  {agent}\n");
        text += &format!("\nuser {user} at the Kernel Agent\n{}", indent(&table));
    }
    text
}

/// The RDMA devices of this host, an object for each port.
fn rdma_rows(devices: &[rdma::Device]) -> Value {
    let rows = devices.iter().flat_map(|device| {
        let obstacle = device.obstacle();
        device.ports.iter().map(move |port| {
            json!({"device": device.name, "driver": device.driver, "port": port.number,
                "state": port.state, "link": port.link_layer, "rate": port.rate,
                "interfaces": port.interfaces, "obstacle": obstacle})
        })
    });
    rows.collect()
}

/// Nothing on a host without them.
fn rdma_text(rows: &Value) -> String {
    if rows.as_array().is_none_or(Vec::is_empty) {
        return String::new();
    }
    let columns = [
        "device",
        "driver",
        "port",
        "state",
        "link",
        "rate",
        "interfaces",
        "obstacle",
    ];
    let headings = [
        "<RDMA device",
        "<driver",
        "port",
        "<state",
        "<link",
        "<rate",
        "<interfaces",
        "<cannot be used because",
    ];
    format!(
        "\nRDMA devices\n{}",
        indent(&rows_table(rows, &headings, &columns))
    )
}

fn settings_table(settings: &Value) -> String {
    let columns = ["name", "value", "default", "source", "help"];
    rows_table(
        settings,
        &["<setting", "<value", "<default", "<from", "<meaning"],
        &columns,
    )
}

fn plugins_table(plugins: &Value) -> String {
    let columns = ["name", "version", "state", "path", "reason"];
    rows_table(
        plugins,
        &["<plug-in", "<version", "<state", "<file", "<reason"],
        &columns,
    )
}

fn layers_table(layers: &Value) -> String {
    let columns = ["name", "version", "state", "path", "reason"];
    rows_table(
        layers,
        &["<layer", "<version", "<state", "<file", "<reason"],
        &columns,
    )
}

/// A table of an array of objects.
fn rows_table(rows: &Value, headings: &[&str], columns: &[&str]) -> String {
    let mut table = Table::new(headings);
    for row in rows.as_array().into_iter().flatten() {
        table.row(columns.iter().map(|column| plain(&row[*column])).collect());
    }
    table.text()
}

/// Why plug-ins were refused, a line each.
fn refusals(plugins: &Value) -> String {
    let refused = plugins
        .as_array()
        .into_iter()
        .flatten()
        .filter(|p| p["state"] == "refused");
    let lines = refused.map(|plugin| {
        let (path, reason) = (plain(&plugin["path"]), plain(&plugin["reason"]));
        format!("  {path} was refused: {reason}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn show_map(options: &Options, vipl: &Library) -> Result<String> {
    let mut answers = Vec::new();
    for name in &options.map {
        let answer = host::describe(vipl, &format!("map {name}"));
        answers.push(answer.ok_or_else(|| not_reported("how it maps device names"))?);
    }
    if options.json {
        return Ok(pretty(&json!(answers)));
    }
    let mut table = Table::new(&["<name", "<served by", "<reason"]);
    for (name, answer) in options.map.iter().zip(&answers) {
        let (target, reason) = if answer["error"].is_null() {
            let target = format!(
                "{}:{}",
                plain(&answer["plugin"]),
                plain(&answer["argument"])
            );
            (target, plain(&answer["reason"]))
        } else {
            ("none".to_owned(), plain(&answer["error"]))
        };
        table.row(vec![name.clone(), target, reason]);
    }
    if answers.iter().all(|answer| !answer["error"].is_null()) {
        return Err(Error::Usage(format!("no such device\n{}", table.text())));
    }
    Ok(table.text())
}

fn everything(vipl: &Library, devices: &[Device]) -> Value {
    let device = |device: &Device| {
        let (name, plugin, argument) = (&device.name, &device.plugin, &device.argument);
        let mut object = json!({"name": name, "plugin": plugin, "argument": argument});
        match &device.attributes {
            Err(error) => object["error"] = json!(error.to_string()),
            Ok(attributes) => {
                let rows = nic::rows(attributes).into_iter();
                let all = rows.map(|(name, value, _)| (name.to_owned(), value));
                object["attributes"] = Value::Object(all.collect::<Map<_, _>>());
            }
        }
        object
    };
    json!({
        "file": vipl.path().display().to_string(),
        "version": host::describe(vipl, "version"),
        "devices": devices.iter().map(device).collect::<Vec<_>>(),
        "plugins": host::describe(vipl, "plugins"),
        "layers": host::describe(vipl, "layers"),
        "settings": host::describe(vipl, "settings"),
        "counters": host::describe(vipl, "counters"),
        "rdma": rdma_rows(&rdma::devices()),
        "budgets": host::describe(vipl, "budgets"),
    })
}

/// A value as a person reads it.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(list) if list.is_empty() => "none".to_owned(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_consistent() {
        use clap::CommandFactory;
        Options::command().debug_assert();
    }

    #[test]
    fn settings_become_a_table() {
        let settings = json!([{"name": "strict", "type": "bool", "value": true, "default": false,
            "source": "environment", "help": "the letter"}]);
        let text = settings_table(&settings);
        assert!(
            text.starts_with("setting  value  default  from         meaning\n"),
            "{text}"
        );
        assert!(
            text.contains("strict   yes    no       environment  the letter"),
            "{text}"
        );
    }

    #[test]
    fn the_default_device_is_the_first_and_lists_are_read_as_such() {
        let devices = ["clanvi0", "via_eth0", "via_lo"].map(|name| json!({"name": name}));
        let names: Vec<String> = default_first(devices.to_vec())
            .iter()
            .map(|device| plain(&device["name"]))
            .collect();
        assert_eq!(names, ["via_lo", "clanvi0", "via_eth0"]);
        assert_eq!(
            plain(&json!(["unreliable", "delivery"])),
            "unreliable, delivery"
        );
        assert_eq!(plain(&json!([])), "none");
    }

    #[test]
    fn rdma_devices_become_a_table() {
        assert_eq!(rdma_text(&json!([])), "");
        let port = rdma::Port {
            number: 1,
            state: "ACTIVE".to_owned(),
            link_layer: "Ethernet".to_owned(),
            rate: "100 Gb/sec (4X EDR)".to_owned(),
            interfaces: vec!["eth0".to_owned()],
        };
        let device = rdma::Device {
            name: "mlx5_0".to_owned(),
            driver: "mlx5_core".to_owned(),
            node: String::new(),
            is_iwarp: false,
            ports: vec![port],
        };
        let text = rdma_text(&rdma_rows(&[device]));
        assert!(
            text.contains("mlx5_0       mlx5_core     1  ACTIVE"),
            "{text}"
        );
        assert!(text.contains("modprobe ib_uverbs"), "{text}");
    }

    #[test]
    fn refusals_name_file_and_reason() {
        let plugins = json!([{"name": "a", "path": "/a.so", "state": "loaded"},
            {"name": "b", "path": "/b.so", "state": "refused", "reason": "too old"}]);
        assert_eq!(refusals(&plugins), "  /b.so was refused: too old");
    }

    #[test]
    fn a_device_that_fails_says_why() {
        let attributes = Err(Error::Usage("no".to_owned()));
        let device = Device {
            name: "x".to_owned(),
            plugin: None,
            argument: None,
            attributes,
        };
        assert!(device_text(&device, false).contains("cannot be opened"));
    }
}

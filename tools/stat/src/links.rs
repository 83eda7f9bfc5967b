//! The network interfaces of devices, from `/sys/class/net`.

use std::path::Path;

use serde_json::{Value, json};

/// Adds to each device whose argument begins with the name of an interface what the kernel says of that.
pub(crate) fn add(devices: &mut Value, interfaces: &Path) {
    for device in devices.as_array_mut().into_iter().flatten() {
        let argument = device["argument"].as_str().unwrap_or_default();
        let name = argument.split([',', ';', '=', ' ']).next();
        let name = name.filter(|name| !name.is_empty() && !name.contains(['/', '.']));
        if let Some(link) = name.and_then(|name| link(&interfaces.join(name))) {
            device["link"] = link;
        }
    }
}

/// State, MTU and, if it is known, speed of an interface.
fn link(folder: &Path) -> Option<Value> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    Some(json!({
        "state": read("operstate")?.trim(),
        "mtu": number("mtu"),
        // Unknown to virtual interfaces, which say -1.
        "mbit_per_s": number("speed"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_an_interface_has_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let eth0 = folder.path().join("eth0");
        std::fs::create_dir(&eth0).unwrap();
        for (name, text) in [("operstate", "up\n"), ("mtu", "1500\n"), ("speed", "-1\n")] {
            std::fs::write(eth0.join(name), text).unwrap();
        }
        let mut devices = json!([
            {"name": "via_eth0", "plugin": "gnic2", "argument": "eth0"},
            {"name": "tuned", "plugin": "gnic2", "argument": "eth0,queue=4"},
            {"name": "via_lo", "plugin": "loopback", "argument": ""},
            {"name": "other", "plugin": "sim", "argument": "../eth0"},
        ]);
        add(&mut devices, folder.path());
        let link = json!({"state": "up", "mtu": 1500, "mbit_per_s": null});
        assert_eq!(devices[0]["link"], link);
        assert_eq!(devices[1]["link"], link);
        assert_eq!(
            (&devices[2]["link"], &devices[3]["link"]),
            (&Value::Null, &Value::Null)
        );
    }
}

//! Entry points for the fuzzers of `ctest/fuzz`, which only see public items; built with `--cfg fuzzing`.

use std::ops::RangeInclusive;

use crate::names;
use crate::plugin::map;
use crate::settings::{DECLARED, Declared, Kind, Settings};

/// One numeric setting.
#[derive(Debug, PartialEq)]
pub struct Number {
    /// Name of the setting.
    pub name: &'static str,
    /// The value in effect.
    pub value: u64,
    /// The permitted range.
    pub range: RangeInclusive<u64>,
}

/// The settings from a file and an environment.
#[derive(Debug, PartialEq)]
pub struct Seen {
    /// Name, text and source of each declared setting.
    pub texts: Vec<(&'static str, String, &'static str)>,
    /// The numbers.
    pub numbers: Vec<Number>,
    /// Complaints.
    pub problems: usize,
}

/// Reads a configuration file, then variables.
pub fn settings(file: &str, variables: &[(String, String)]) -> Seen {
    let settings = Settings::of(file, variables.iter().cloned());
    let text = |name: &'static str| {
        let (text, source) = (settings.text(name), settings.source(name));
        (name, text.to_owned(), source.name())
    };
    let number = |setting: &Declared| {
        let (Kind::Number(_, least, most) | Kind::Bytes(least, most)) = setting.kind else {
            return None;
        };
        Some(Number {
            name: setting.name,
            value: settings.number(setting.name),
            range: least..=most,
        })
    };
    let lenient = [
        settings.null_ptag(),
        settings.null_mem_attributes(),
        settings.lenient_destroy(),
        settings.carry_unflagged_immediate(),
    ];
    if lenient.iter().all(|yes| !yes) {
        // In the strict mode, or if the setting is given.
        assert!(settings.strict() || settings.given("null_ptag").is_some());
    }
    Seen {
        texts: DECLARED.iter().map(|setting| text(setting.name)).collect(),
        numbers: DECLARED.iter().filter_map(number).collect(),
        problems: settings.problems.len(),
    }
}

/// The table of the name service.
pub struct Table {
    names: names::table::Names,
    /// Lines that were reported.
    pub bad: Vec<usize>,
}

impl Table {
    /// Reads one.
    pub fn read(text: &str) -> Table {
        let mut bad = Vec::new();
        let names = names::table::Names::parse(text, |number, _| bad.push(number));
        Table { names, bad }
    }

    /// VipNSGetHostByName.
    pub fn by_name(&self, name: &str, index: usize) -> Option<&[u8]> {
        self.names.by_name("", name, index)
    }

    /// VipNSGetHostByAddr.
    pub fn by_address(&self, address: &[u8]) -> Option<&str> {
        self.names.by_address("", address)
    }
}

/// A device name without its folder.
pub fn plain_name(name: &str) -> &str {
    map::plain(name)
}

/// The pairs of a device map.
pub fn device_map(text: &str) -> Vec<(String, String)> {
    map::parse_map(text)
}

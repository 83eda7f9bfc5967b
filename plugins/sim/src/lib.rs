//! The device plug-in `sim`: the Ethernet device class over a faulty network inside one host.
//!
//! `sim:` is a network without faults; `sim:seed=7,loss=0.05` loses frames. The words:
//!
//! | word | means | default |
//! | --- | --- | --- |
//! | `seed` | seed of all random decisions | 1 |
//! | `loss`, `dup`, `reorder`, `corrupt` | probability of each fault, 0 to 0.9 | 0 |
//! | `delay` | microseconds on the way | 0 |
//! | `rate` | bytes per second; 0: no limit | 0 |
//! | `mtu` | bytes of a frame | 1500 |
//! | `node` | number of the node, 0 to 255, for its address | 0 |
//!
//! With the same seed, the frame with the same number of the same connection meets the same faults. A setting
//! `sim.WORD` is the default of its word.

use std::ffi::{CStr, CString};
use std::str::FromStr;

use vipl_ethernet::interface::Interface;
use vipl_ethernet::{Card, Ethernet, Network, Policy};
use vipl_link_emulator::Impairments;
use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, text};
use vipl_plugin_sdk::settings::{self, Setting};
use vipl_plugin_sdk::{Host, Status};

/// Largest probability of a fault, in millionths, so that something arrives.
const FAULTS_MAX: u64 = 900_000;
const WORDS: [&str; 9] = [
    "seed", "loss", "dup", "reorder", "corrupt", "delay", "rate", "mtu", "node",
];

/// A card without hardware.
pub struct Sim;

impl Card for Sim {
    const NAME: &'static CStr = c"sim";
    const DOORBELL: Policy = Policy::Trap;
    const FRAME_MAX: usize = 9000;
    const SETTINGS: &'static [Setting] = &[
        settings::counted(
            c"seed",
            c"number",
            c"1",
            (0, u64::MAX),
            c"seed of all random decisions",
        ),
        settings::probability(c"loss", FAULTS_MAX, c"share of frames that are lost"),
        settings::probability(c"dup", FAULTS_MAX, c"share of frames that arrive twice"),
        settings::probability(
            c"reorder",
            FAULTS_MAX,
            c"share of frames that are overtaken",
        ),
        settings::probability(
            c"corrupt",
            FAULTS_MAX,
            c"share of frames with a changed bit",
        ),
        settings::counted(
            c"delay",
            c"microseconds",
            c"0",
            (0, u32::MAX as u64),
            c"delay of each frame",
        ),
        settings::bytes(
            c"rate",
            Some(c"0"),
            (0, u64::MAX),
            c"bytes per second of one direction of a connection; 0: no limit",
        ),
        settings::bytes(
            c"mtu",
            Some(c"1500"),
            (256, Self::FRAME_MAX as u64),
            c"largest frame",
        ),
        settings::counted(
            c"node",
            c"number",
            c"0",
            (0, 255),
            c"number of this process's node in the simulated network",
        ),
    ];

    fn serves(_interface: &Interface) -> bool {
        false
    }

    fn claim(name: &str) -> Option<(i32, String)> {
        (name == "sim").then(|| (100, String::new()))
    }

    fn devices() -> Vec<String> {
        Vec::new()
    }

    fn network(argument: &str) -> Result<Network, Status> {
        let pairs: Vec<_> = argument
            .split(',')
            .filter(|pair| !pair.is_empty())
            .collect();
        let known = |pair: &&str| {
            pair.split_once('=')
                .is_some_and(|(word, _)| WORDS.contains(&word))
        };
        if let Some(bad) = pairs.iter().find(|pair| !known(pair)) {
            return refuse(&format!("{bad:?} is not one of {WORDS:?} with a value"));
        }
        let chance = |word| {
            let value = value(&pairs, word, 0.0)?;
            match value {
                0.0..=0.9 => Ok(value),
                _ => refuse(&format!("{word}={value} is not from 0 to 0.9")),
            }
        };
        let delay_us: u32 = value(&pairs, "delay", 0)?;
        let mtu = bytes(&pairs, "mtu", 1500)? as usize;
        if !(256..=Self::FRAME_MAX).contains(&mtu) {
            return refuse(&format!("mtu={mtu} is not from 256 to {}", Self::FRAME_MAX));
        }
        let node: u8 = value(&pairs, "node", 0)?;
        let impairments = Impairments {
            seed: value(&pairs, "seed", 1)?,
            loss: chance("loss")?,
            duplicate: chance("dup")?,
            reorder: chance("reorder")?,
            corrupt: chance("corrupt")?,
            exempt_bytes: 0,
            delay_ns: u64::from(delay_us) * 1000,
            rate: bytes(&pairs, "rate", 0)?,
        };
        Ok(Network::Emulated {
            impairments,
            mtu,
            // Locally administered, "SIM" and the node.
            address: [0x02, b'S', b'I', b'M', 0, node],
            name: format!("sim:{argument}"),
        })
    }
}

fn refuse<T>(why: &str) -> Result<T, Status> {
    Host::get().log(VIPL_LOG_ERROR, &format!("sim: {why}"));
    Err(Status::Invalid)
}

/// The value of a word: from the argument, else from the setting, else the default.
fn value<T: FromStr>(pairs: &[&str], word: &str, default: T) -> Result<T, Status> {
    read(pairs, word, default, |text| text.parse().ok())
}

/// The same for a number of bytes, which may have a unit.
fn bytes(pairs: &[&str], word: &str, default: u64) -> Result<u64, Status> {
    read(pairs, word, default, text::bytes)
}

fn read<T>(
    pairs: &[&str],
    word: &str,
    default: T,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, Status> {
    let given = pairs
        .iter()
        .rev()
        .find_map(|pair| pair.strip_prefix(word)?.strip_prefix('='));
    let setting = || Host::get().setting(Sim::NAME, &CString::new(word).ok()?);
    match given.map(str::to_owned).or_else(setting) {
        None => Ok(default),
        Some(text) => match parse(&text) {
            Some(value) => Ok(value),
            None => refuse(&format!("{word}={text} is not a valid number")),
        },
    }
}

vipl_plugin_sdk::plugin!(Ethernet<Sim>: Ready, Sleep);

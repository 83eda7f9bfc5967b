//! Networks of other hosts, parsed from an option.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::str::FromStr;

/// Networks from which other hosts may start connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks {
    any: bool,
    /// In addition to the host's own subnets.
    more: Vec<Network>,
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    pub(crate) address: IpAddr,
    pub(crate) bits: u32,
}

impl Network {
    /// Whether it contains this address.
    pub(crate) fn has(&self, other: IpAddr) -> bool {
        let differ = match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (u128::from(u32::from(own) ^ u32::from(other))) << 96
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => u128::from(own) ^ u128::from(other),
            _ => return false,
        };
        differ.leading_zeros() >= self.bits
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, bits) = text.split_once('/').unzip();
        let wrong = || format!("{text:?} is no network: 10.0.0.0/8 or fd00::/8 is one");
        let address: IpAddr = address.unwrap_or(text).parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| wrong())?;
        (bits <= most)
            .then_some(Network { address, bits })
            .ok_or_else(wrong)
    }
}

impl Networks {
    /// Whether one of them contains this address.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.any || self.more.iter().any(|one| one.has(ip))
    }
}

impl FromStr for Networks {
    type Err = String;

    /// `subnets`, `any`, or networks beside the subnets, separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Networks::default();
        for word in text.split(',').map(str::trim) {
            match word {
                "" | "subnets" => {}
                "any" => all.any = true,
                network => all.more.push(network.parse()?),
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        for (text, ip, has) in [
            ("10.0.0.0/8", "10.9.9.9", true),
            ("10.0.0.0/8", "11.0.0.0", false),
            ("10.0.0.0/8", "a00::", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("fd00::/8", "fdff::1", true),
            ("fd00::/8", "fe00::1", false),
        ] {
            let network: Network = text.parse().unwrap();
            assert_eq!(network.has(ip.parse().unwrap()), has, "{text} {ip}");
        }
        for wrong in [
            "10.0.0.0/33",
            "fd00::/129",
            "10/8",
            "every",
            "10.0.0.0/",
            "/8",
        ] {
            assert!(wrong.parse::<Networks>().is_err(), "{wrong}");
        }
        assert_eq!("subnets".parse(), Ok(Networks::default()));
        assert_eq!("".parse(), Ok(Networks::default()));
        let all: Networks = "10.0.0.0/8, any".parse().unwrap();
        assert!(all.any && all.more.len() == 1);
    }
}

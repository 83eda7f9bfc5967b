//! Two hosts with a router between them, and a line that is slower than the hosts.

use std::process::Command;

use crate::{INTERFACE, Namespaces, ip, port};

/// Number of the router in each subnet.
const ROUTER: u16 = 254;

/// UDP port of an agent.
const AGENT: u16 = 34_998;

impl Namespaces {
    /// Two hosts in subnets of their own, and a router.
    ///
    /// # Errors
    /// Why this machine or this user cannot have them.
    pub fn routed() -> Result<Self, String> {
        let mut made = Self::empty(2, true)?;
        made.routed = true;
        let router = made.switch.clone().unwrap_or_default();
        for (number, host) in made.hosts.iter().enumerate() {
            let (port, subnet) = (port(number), made.subnet(number));
            let peer = ["peer", "name", INTERFACE, "netns", host];
            ip(
                &["-n", &router, "link", "add", &port, "type", "veth"],
                &peer,
            )?;
            let v4 = format!("10.76.{subnet}.{ROUTER}/24");
            let v6 = format!("fd76:0:0:{subnet:x}::{ROUTER:x}/64");
            ip(&["-n", &router, "address", "add", &v4, "dev", &port], &[])?;
            ip(
                &["-n", &router, "address", "add", &v6, "dev", &port],
                &["nodad"],
            )?;
            ip(&["-n", &router, "link", "set", &port, "up"], &[])?;
        }
        made.up()?;
        made.on_router("sh", &["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"])?;
        for (number, host) in made.hosts.iter().enumerate() {
            let subnet = made.subnet(number);
            let (v4, v6) = (
                format!("10.76.{subnet}.{ROUTER}"),
                format!("fd76:0:0:{subnet:x}::{ROUTER:x}"),
            );
            ip(&["-n", host, "route", "add", "default", "via", &v4], &[])?;
            ip(
                &["-n", host, "-6", "route", "add", "default", "via", &v6],
                &[],
            )?;
        }
        Ok(made)
    }

    /// From now on the line from the router to host 1 has this rate, and a queue of so many bytes before it.
    ///
    /// # Errors
    /// Why this kernel cannot have one: it takes `tc` and `tbf`.
    pub fn bottleneck(&self, megabits: u32, queue: u32) -> Result<(), String> {
        let (rate, limit) = (format!("{megabits}mbit"), queue.to_string());
        let line = [
            "qdisc", "replace", "dev", "port1", "root", "tbf", "rate", &rate,
        ];
        self.on_router(
            "tc",
            &[&line[..], &["burst", "16000", "limit", &limit]].concat(),
        )
    }

    /// From now on the interface of the router toward host 1 carries packets of at most so many bytes. The router tells
    /// host 0 of those that are longer; longer ones of host 1 vanish.
    ///
    /// # Errors
    /// Why that is not possible.
    pub fn narrow(&self, bytes: u32) -> Result<(), String> {
        let bytes = bytes.to_string();
        self.on_router("ip", &["link", "set", "port1", "mtu", &bytes])
    }

    /// From now on the router translates these UDP ports of a host to others, as if it had forgotten those by which the
    /// peers know the host: what comes for them vanishes.
    ///
    /// # Errors
    /// Why that is not possible: it takes `nft`.
    pub fn translate(&self, host: usize, ports: &[u16]) -> Result<(), String> {
        let (ip, mut rules) = (self.ipv4(host), Vec::new());
        for port in ports {
            let other = port ^ 1;
            rules.push(format!(
                "ip saddr {ip} udp sport {port} udp sport set {other}"
            ));
            rules.push(format!("ip daddr {ip} udp dport {port} drop"));
            rules.push(format!(
                "ip daddr {ip} udp dport {other} udp dport set {port}"
            ));
        }
        self.rules(&[("filter hook forward priority 0", &rules)])
    }

    /// From now on the router translates every UDP port of a host but its agent's, and lets packets for the host pass
    /// only as answers.
    ///
    /// # Errors
    /// Why that is not possible: it takes `nft`.
    pub fn hide(&self, host: usize) -> Result<(), String> {
        let ip = self.ipv4(host);
        let others = format!("snat to {ip}:20000-29999");
        self.rules(&[
            (
                "nat hook postrouting priority 100",
                &[format!("ip saddr {ip} udp sport != {AGENT} {others}")],
            ),
            (
                "filter hook forward priority 0",
                &[format!(
                    "ip daddr {ip} udp dport != {AGENT} ct state new drop"
                )],
            ),
        ])
    }

    /// Adds chains of rules to the router.
    fn rules(&self, chains: &[(&str, &[String])]) -> Result<(), String> {
        let chain = |(number, (kind, rules)): (usize, &(&str, &[String]))| {
            let rules = rules.join("; ");
            format!("chain chain{number} {{ type {kind}; {rules}; }};")
        };
        let chains: Vec<String> = chains.iter().enumerate().map(chain).collect();
        let text = format!("table ip vipl {{ {} }}", chains.join(" "));
        self.on_router("nft", &[&text])
    }

    /// The ports of UDP sockets on a host, but for that of its agent.
    ///
    /// # Panics
    /// If the kernel does not tell.
    pub fn data_ports(&self, host: usize) -> Vec<u16> {
        let mut command = self.command(host, "cat");
        let output = command.arg("/proc/net/udp").output().expect("cat");
        let text = String::from_utf8(output.stdout).expect("text");
        // A line: number, address:port, and more.
        let port = |line: &str| {
            let own = line.split_whitespace().nth(1)?.split_once(':')?.1;
            u16::from_str_radix(own, 16).ok()
        };
        let ports = text.lines().filter_map(port);
        ports.filter(|port| *port != AGENT).collect()
    }

    /// Fragments that any host, or the router, has made or put together, of both versions of IP.
    ///
    /// # Panics
    /// If the kernel does not tell.
    pub fn fragments(&self) -> u64 {
        let all = self.hosts.iter().chain(&self.switch);
        all.map(|name| fragments(name)).sum()
    }

    /// From now on the router marks so many of a thousand packets, chosen at random, of those that may be marked (RFC
    /// 3168). The qdiscs that mark for their queue are in few kernels.
    ///
    /// # Errors
    /// Why this machine cannot: it takes `nft`.
    pub fn mark(&self, permille: u32) -> Result<(), String> {
        let chosen = format!("numgen random mod 1000 < {permille} counter");
        let rules = format!(
            "table inet router {{ chain marks {{ type filter hook forward priority 0;
                 ip ecn {{ ect0, ect1 }} {chosen} ip ecn set ce;
                 ip6 ecn {{ ect0, ect1 }} {chosen} ip6 ecn set ce;
             }}; }};"
        );
        self.on_router("nft", &[&rules])
    }

    /// Packets that the router has marked.
    ///
    /// # Panics
    /// If it does not tell.
    pub fn marked(&self) -> u64 {
        numbers_after("packets", &self.router_says("nft", &["list", "ruleset"]))
    }

    /// Packets that the router has dropped before its slow line.
    ///
    /// # Panics
    /// If it does not tell.
    pub fn dropped(&self) -> u64 {
        let text = self.router_says("tc", &["-s", "qdisc", "show", "dev", "port1"]);
        numbers_after("(dropped", &text)
    }

    fn router_says(&self, program: &str, arguments: &[&str]) -> String {
        let router = self.switch.as_deref().unwrap_or_default();
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", router, program])
            .args(arguments);
        let output = command.output().expect("ip");
        assert!(output.status.success(), "{program}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn on_router(&self, program: &str, arguments: &[&str]) -> Result<(), String> {
        let router = self.switch.as_deref().unwrap_or_default();
        ip(
            &[&["netns", "exec", router, program], arguments].concat(),
            &[],
        )
    }
}

/// Those of one namespace.
fn fragments(namespace: &str) -> u64 {
    let mut command = std::process::Command::new("ip");
    command.args(["netns", "exec", namespace, "cat"]);
    let output = command.args(["/proc/net/snmp", "/proc/net/snmp6"]).output();
    let text = String::from_utf8(output.expect("ip").stdout).expect("text");
    let v4: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("Ip: "))
        .collect();
    let [names, values] = v4.as_slice() else {
        panic!("no counters of IP in {text}");
    };
    let v4 = names.split(' ').zip(values.split(' '));
    let v6 = text
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace));
    let counts = [
        "FragCreates",
        "ReasmReqds",
        "Ip6FragCreates",
        "Ip6ReasmReqds",
    ];
    let counted = v4.chain(v6).filter(|(name, _)| counts.contains(name));
    counted
        .map(|(_, count)| count.trim().parse::<u64>().expect("a number"))
        .sum()
}

/// The sum of the numbers that follow a word.
fn numbers_after(word: &str, text: &str) -> u64 {
    let words: Vec<_> = text.split_whitespace().collect();
    let number = |pair: &[&str]| pair[1].trim_end_matches(',').parse::<u64>().ok();
    let found = words.windows(2).filter(|pair| pair[0] == word);
    found.map(|pair| number(pair).expect("a number")).sum()
}

//! A world without an operating system: an agent, a clock that the test advances, and an inbox for each
//! process. File descriptors are numbers.
#![allow(dead_code, unreachable_pub)]

use std::collections::{BTreeMap, VecDeque};

use kagent::{Agent, Census, ClientId, FrameOut, Interface, Medium, OpenDevice, OpenLink, Output};
use kagent_proto::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use crate::bodies::*;

pub const MS: u64 = 1_000_000;
pub const FOREVER: u64 = u64::MAX;

#[derive(Clone, Debug)]
pub struct Packet {
    pub op: Op,
    pub status: Status,
    pub id: u64,
    pub body: Vec<u8>,
    pub fds: Vec<u32>,
}

impl Packet {
    pub fn body<T: FromBytes>(&self) -> T {
        T::read_from_bytes(&self.body).expect("body of the expected size")
    }
}

pub struct World {
    pub agent: Agent<u32>,
    pub now: u64,
    pub inbox: BTreeMap<u64, VecDeque<Packet>>,
    pub no_segments: bool,
    pub segments: u32,
    /// Interfaces by name.
    pub interfaces: BTreeMap<&'static str, Interface>,
    pub closed_links: Vec<u32>,
    /// Notes of the agent.
    pub notes: Vec<String>,
    /// Names of existing devices.
    pub devices: Vec<&'static str>,
    /// Processes introduced to a device.
    pub introduced: Vec<OpenDevice>,
    /// Frames sent to other hosts.
    pub frames: VecDeque<FrameOut>,
}

impl World {
    pub fn new() -> Self {
        Self::seeded(1)
    }

    /// Agents of different hosts have different seeds.
    pub fn seeded(seed: u8) -> Self {
        let agent = Agent::new([seed; 32]).with_pid(4711).with_notes(true);
        World {
            agent,
            now: 5 * MS,
            inbox: BTreeMap::new(),
            no_segments: false,
            segments: 0,
            interfaces: BTreeMap::new(),
            closed_links: Vec::new(),
            notes: Vec::new(),
            devices: Vec::new(),
            introduced: Vec::new(),
            frames: VecDeque::new(),
        }
    }

    /// A world with processes 1 to `count` of one user, greeted.
    pub fn with_clients(count: u64) -> Self {
        let mut world = Self::new();
        for client in 1..=count {
            world.connect(client, 1000);
            world.hello(client);
        }
        world
    }

    pub fn connect(&mut self, client: u64, uid: u32) {
        let pid = 100 + client as u32;
        self.agent
            .handle_connect(self.now, ClientId(client), uid, pid)
            .expect("room for a client");
        self.inbox.insert(client, VecDeque::new());
    }

    pub fn hello(&mut self, client: u64) {
        self.hello_with(client, 0);
    }

    pub fn hello_with(&mut self, client: u64, features: u64) {
        self.call(client, Op::HELLO, 1, &Hello { features });
        let welcome = self.take(client);
        assert_eq!(
            (welcome.op, welcome.status, welcome.id),
            (Op::WELCOME, Status::OK, 1)
        );
        let body = welcome.body::<Welcome>();
        assert_eq!((body.agent_pid, body.features), (4711, features));
    }

    pub fn raw(&mut self, client: u64, bytes: &[u8], fds: Vec<u32>) {
        let _ = self
            .agent
            .handle_message(self.now, ClientId(client), bytes, fds);
        self.pump();
    }

    pub fn call<T: IntoBytes + Immutable>(&mut self, client: u64, op: Op, id: u64, body: &T) {
        self.raw(client, &packet(op, id, body), Vec::new());
    }

    /// The process has exited; unread messages are lost, and anything sent to it from now on is an error.
    pub fn hangup(&mut self, client: u64) {
        self.inbox.remove(&client);
        self.agent.handle_hangup(self.now, ClientId(client));
        self.pump();
    }

    pub fn goodbye(&mut self, client: u64) {
        self.call(client, Op::GOODBYE, 0, &());
    }

    /// Advances time like a runtime: timer by timer.
    pub fn sleep_ms(&mut self, ms: u64) {
        let end = self.now + ms * MS;
        while let Some(next) = self.agent.poll_timeout().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.agent.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
        self.agent.handle_timeout(end);
        self.pump();
        assert_eq!(self.agent.audit(), Ok(()));
    }

    pub fn pump(&mut self) {
        while let Some(output) = self.agent.poll_output() {
            match output {
                Output::Send(message) => self.deliver(message),
                Output::OpenLink(open) => self.open_link(&open),
                // These hosts have no UDP.
                Output::AdoptLink(adopt) => {
                    self.agent
                        .handle_link_opened(self.now, &adopt.open, Err(Status::INVALID))
                }
                Output::AskLink(open) => {
                    self.agent
                        .handle_link_asked(self.now, &open, Status::NOT_PERMITTED);
                }
                Output::OpenDevice(open) => self.open_device(&open),
                Output::Frame(frame) => self.frames.push_back(frame),
                Output::CloseLink(link) => self.closed_links.push(link),
                Output::Note(line) => self.notes.push(line),
                Output::Join(join) if self.no_segments => {
                    self.agent.handle_join_failed(self.now, &join);
                }
                Output::Join(join) => {
                    assert!(join.segment_bytes >= 4096 && join.segment_bytes.is_multiple_of(4096));
                    self.segments += 1;
                    let segment = 1_000_000 + self.segments;
                    join.with_segment(segment)
                        .into_iter()
                        .for_each(|m| self.deliver(m));
                }
            }
        }
    }

    fn open_link(&mut self, open: &OpenLink) {
        let name = String::from_utf8_lossy(&open.interface);
        let found = self.interfaces.get(name.trim_end_matches('\0')).copied();
        let result = found.ok_or(Status::INVALID).and_then(|interface| {
            let endpoint = self.agent.free_endpoint(interface.index);
            endpoint
                .map(|endpoint| (interface, endpoint, vec![2_000_000 + u32::from(endpoint)]))
                .ok_or(Status::RESOURCE)
        });
        self.agent.handle_link_opened(self.now, open, result);
    }

    fn open_device(&mut self, open: &OpenDevice) {
        let name = String::from_utf8_lossy(&open.device);
        let known = self.devices.contains(&name.trim_end_matches('\0'));
        let result = known.then_some((88, 3_000_000)).ok_or(Status::INVALID);
        if known {
            self.introduced.push(*open);
        }
        self.agent.handle_device_opened(self.now, open, result);
    }

    /// Adds an interface with this number to the host.
    pub fn plug_in(&mut self, name: &'static str, index: u32, address: [u8; 6]) {
        let mut interface = Interface {
            index,
            name: [0; 16],
            medium: Medium::Ethernet,
            address: address.into(),
            mtu: 1500,
            speed_mbit: 1000,
            driver: [0; 32],
            seals: None,
        };
        interface.name[..name.len()].copy_from_slice(name.as_bytes());
        self.interfaces.insert(name, interface);
    }

    /// Opens an endpoint and a NIC on it; returns the NIC's identifier and the number of the endpoint.
    pub fn open_on(&mut self, client: u64, interface: &str) -> (u64, u16) {
        let opened = self.link(client, interface);
        let host = &opened.host[..usize::from(opened.host_len)];
        let body = NicOpen {
            link: opened.link,
            ..nic_open("wire", host)
        };
        self.call(client, Op::NIC_OPEN, 4, &body);
        (self.take(client).body::<NicOpened>().nic, opened.endpoint)
    }

    pub fn link(&mut self, client: u64, interface: &str) -> LinkOpened {
        self.call(client, Op::LINK_OPEN, 3, &link_open(interface));
        let packet = self.take(client);
        assert_eq!(
            (packet.op, packet.id),
            (Op::LINK_OPENED, 3),
            "{:?}",
            packet.status
        );
        let body: LinkOpened = packet.body();
        assert_eq!(packet.fds, [2_000_000 + u32::from(body.endpoint)]);
        body
    }

    fn deliver(&mut self, message: kagent::Message<u32>) {
        assert!(message.bytes.len() <= MESSAGE_BYTES_MAX && message.fds.len() <= FDS_MAX);
        let (header, body) = Header::read_from_prefix(&message.bytes).expect("a header");
        assert_eq!((header.magic, header.version), (MAGIC, VERSION));
        assert_eq!(header.length as usize, body.len());
        let packet = Packet {
            op: Op(header.op),
            status: Status(header.status),
            id: header.id,
            body: body.to_vec(),
            fds: message.fds,
        };
        self.inbox
            .get_mut(&message.client.0)
            .expect("a known client")
            .push_back(packet);
    }

    /// The next packet for a process, which must exist.
    pub fn take(&mut self, client: u64) -> Packet {
        let inbox = self.inbox.get_mut(&client).expect("a known client");
        inbox
            .pop_front()
            .unwrap_or_else(|| panic!("no packet for process {client}"))
    }

    pub fn expect_done(&mut self, client: u64, id: u64, status: Status) {
        let packet = self.take(client);
        assert_eq!(
            (packet.op, packet.id, packet.status),
            (Op::DONE, id, status)
        );
        let detail = Detail::read_from_bytes(&packet.body).is_ok();
        assert!(packet.body.is_empty() || (detail && status != Status::OK));
    }

    /// A refusal with its reason.
    pub fn expect_denied(&mut self, client: u64, id: u64, status: Status) -> Detail {
        let packet = self.take(client);
        let got = (packet.op, packet.id, packet.status);
        assert_eq!(got, (Op::DONE, id, status));
        packet.body()
    }

    /// A refusal of a request for which no server waits, with the discriminators waited for.
    pub fn expect_waited(&mut self, client: u64, id: u64) -> Vec<Vec<u8>> {
        let packet = self.take(client);
        let got = (packet.op, packet.id, packet.status);
        assert_eq!(got, (Op::DONE, id, Status::NO_MATCH));
        let body = packet.body::<Waited>();
        assert_eq!(body.detail, Detail::new(Reason::NO_SERVER));
        body.names().map(<[u8]>::to_vec).collect()
    }

    /// Usage and limit of a user, as reported to its process.
    pub fn budget(&mut self, client: u64, budget: Budget) -> BudgetLine {
        self.call(client, Op::BUDGETS, 6, &());
        let packet = self.take(client);
        assert_eq!((packet.op, packet.id), (Op::BUDGET_LIST, 6));
        packet.body::<BudgetList>().lines[budget as usize]
    }

    pub fn expect_gone(&mut self, client: u64, connection: u64, orderly: u32) {
        let packet = self.take(client);
        assert_eq!((packet.op, packet.id), (Op::PEER_GONE, 0));
        let body: PeerGone = packet.body();
        assert_eq!((body.connection, body.orderly), (connection, orderly));
    }

    pub fn expect_incoming(&mut self, client: u64, id: u64) -> Incoming {
        let packet = self.take(client);
        assert_eq!(
            (packet.op, packet.id, packet.status),
            (Op::INCOMING, id, Status::OK)
        );
        packet.body()
    }

    pub fn expect_connected(&mut self, client: u64, id: u64) -> (Connected, Vec<u32>) {
        let packet = self.take(client);
        assert_eq!(
            (packet.op, packet.id, packet.status),
            (Op::CONNECTED, id, Status::OK)
        );
        (packet.body(), packet.fds)
    }

    pub fn quiet(&self) {
        for (client, inbox) in &self.inbox {
            assert!(inbox.is_empty(), "process {client} got {inbox:?}");
        }
    }

    pub fn open_at(&mut self, client: u64, host: &[u8]) -> u64 {
        self.open_as(client, "loopback", host, Vec::new())
    }

    pub fn open(&mut self, client: u64) -> u64 {
        self.open_at(client, b"hostA")
    }

    pub fn open_as(&mut self, client: u64, name: &str, host: &[u8], fds: Vec<u32>) -> u64 {
        self.raw(client, &packet(Op::NIC_OPEN, 2, &nic_open(name, host)), fds);
        let packet = self.take(client);
        assert_eq!(
            (packet.op, packet.id),
            (Op::NIC_OPENED, 2),
            "{:?}",
            packet.status
        );
        packet.body::<NicOpened>().nic
    }

    pub fn wait(&mut self, client: u64, nic: u64, id: u64, disc: &[u8], timeout_ms: u64) {
        self.call(client, Op::WAIT, id, &wait(nic, disc, timeout_ms));
    }

    pub fn request(&mut self, client: u64, id: u64, body: &Request) {
        self.call(client, Op::REQUEST, id, body);
    }

    pub fn accept(&mut self, client: u64, id: u64, connection: u64) {
        self.call(client, Op::ACCEPT, id, &accept(connection));
    }

    /// Connects a client to a server; returns the identifiers of both sides.
    pub fn pair(&mut self, server: (u64, u64), client: (u64, u64)) -> (u64, u64) {
        self.wait(server.0, server.1, 10, b"pair", FOREVER);
        self.request(client.0, 11, &request(client.1, b"hostA", b"pair"));
        let connection = self.expect_incoming(server.0, 10).connection;
        self.accept(server.0, 12, connection);
        let (at_server, _) = self.expect_connected(server.0, 12);
        let (at_client, _) = self.expect_connected(client.0, 11);
        assert_eq!(at_server.connection, connection);
        (connection, at_client.connection)
    }

    pub fn end(mut self) {
        let clients: Vec<u64> = self.inbox.keys().copied().collect();
        for client in clients {
            self.hangup(client);
        }
        assert_eq!(self.agent.audit(), Ok(()));
        assert_eq!(self.agent.census(), Census::default());
        assert_eq!(self.agent.poll_timeout(), None);
    }
}

//! The supervisor's hands: it starts parties and agents, reads what they say, kills them, and looks for
//! what they leave behind.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::link::Spec;
use crate::talk::Spice;
use vipl_netns::listens;
use vipl_sys::clock::now_ns;

/// Bounds everything that must happen: a loaded machine is no error.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Log lines that the runs provoke.
const EXPECTED_LOG: &[&str] = &[
    "the Kernel Agent exited",
    "the Kernel Agent closed the connection",
    // A party that asks before its peer waits asks again.
    "cm: no server for discriminator",
    "cm: no connection to",
];
/// What the library says when it has gone over to another agent.
const TAKEN_OVER: &str = "another one has taken over";

/// The name of memory of `vipl_alloc` in a list of mappings.
const MEMORY: &str = "vipl-memory (deleted)";

/// What all runs have in common.
pub(crate) struct Setting {
    pub(crate) library: PathBuf,
    pub(crate) vipkad: PathBuf,
    pub(crate) device: String,
    pub(crate) seed: u64,
    pub(crate) spice: Spice,
    pub(crate) levels: Vec<u16>,
    /// Network namespaces of the hosts; none: all run on this one. Party n is on host n modulo their number.
    pub(crate) hosts: Vec<String>,
}

/// Sums of what the parties have told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Connections that ended without anybody's doing, by ends.
    pub(crate) lost: u64,
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    pub(crate) rdma: u64,
    pub(crate) partings: u64,
}

/// What a party has open.
#[derive(Debug)]
pub(crate) struct Holdings {
    files: usize,
    /// Mappings of shared memory, by name.
    mappings: BTreeMap<String, usize>,
    /// Mappings of memory of `vipl_alloc`, its own and that of peers.
    memory: usize,
    ends: usize,
}

impl Holdings {
    /// Whether it is what there was before. Memory of a peer is mapped, once for writing and once for reading, when
    /// RDMA first reaches for it, which may be later.
    pub(crate) fn are_still(&self, before: &Self) -> bool {
        self.files == before.files
            && self.mappings == before.mappings
            && self.memory <= before.memory + 2 * before.ends
    }
}

/// Something that a party has said or done.
enum Event {
    Out(u32, String),
    Err(u32, String),
}

/// One process of a run.
pub(crate) struct Party {
    child: Child,
    orders: Option<ChildStdin>,
    pub(crate) ends: Vec<Spec>,
    /// Ends whose present connection works.
    up: HashMap<usize, bool>,
    /// When each loss was noticed, by link, not yet asked for.
    lost: HashMap<usize, u64>,
    beats: Vec<HashMap<usize, u64>>,
    pub(crate) taken_over: u32,
    totals: Totals,
    ended: bool,
}

/// All processes of a run, and an agent on each host.
pub(crate) struct Run {
    setting: Setting,
    folder: tempfile::TempDir,
    agents: Vec<Child>,
    pub(crate) parties: Vec<Party>,
    /// What parties that have exited had done.
    gone: Totals,
    sender: Sender<Event>,
    events: Receiver<Event>,
    started: u64,
}

type Outcome<T = ()> = Result<T, String>;

impl Run {
    /// Starts an agent and one party for each list of ends.
    pub(crate) fn start(setting: Setting, parties: Vec<Vec<Spec>>) -> Outcome<Run> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (sender, events) = channel();
        let mut run = Run {
            setting,
            folder,
            agents: Vec::new(),
            parties: Vec::new(),
            gone: Totals::default(),
            sender,
            events,
            started: 0,
        };
        for host in 0..run.setting.hosts.len().max(1) {
            let agent = run.new_agent(host)?;
            run.agents.push(agent);
        }
        for (which, ends) in parties.into_iter().enumerate() {
            let party = run.start_party(which, ends)?;
            run.parties.push(party);
        }
        Ok(run)
    }

    /// The host of a party, and the namespace of a host.
    fn host(&self, which: usize) -> usize {
        which % self.setting.hosts.len().max(1)
    }

    fn namespace(&self, host: usize) -> Option<&str> {
        self.setting.hosts.get(host).map(String::as_str)
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.folder.path().join(format!("agent{host}"))
    }

    fn new_agent(&self, host: usize) -> Outcome<Child> {
        start_agent(
            &self.setting.vipkad,
            &self.socket(host),
            self.namespace(host),
        )
    }

    fn start_party(&mut self, which: usize, ends: Vec<Spec>) -> Outcome<Party> {
        self.started += 1;
        let itself = std::env::current_exe().map_err(|error| error.to_string())?;
        let host = self.host(which);
        let mut command = on_host(self.namespace(host), &itself);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("VIPL_") {
                command.env_remove(name);
            }
        }
        command
            .env("VIPL_CONFIG", "/dev/null")
            .env("VIPL_AGENT", self.socket(host))
            .arg("party")
            .arg("--library")
            .arg(&self.setting.library)
            .args(["--device", &self.setting.device])
            .args(["--run", &format!("{:x}", std::process::id())])
            .args([
                "--seed",
                &(self.setting.seed ^ self.started << 48).to_string(),
            ])
            .args(["--parting", &self.setting.spice.parting.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.setting.spice.rdma {
            command.arg("--rdma");
        }
        command.args(ends.iter().map(Spec::argument));
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let pid = child.id();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        listen(out, self.sender.clone(), move |line| Event::Out(pid, line));
        listen(err, self.sender.clone(), move |line| Event::Err(pid, line));
        Ok(Party {
            orders: child.stdin.take(),
            child,
            ends,
            up: HashMap::new(),
            lost: HashMap::new(),
            beats: Vec::new(),
            taken_over: 0,
            totals: Totals::default(),
            ended: false,
        })
    }

    /// Takes events until a condition holds.
    pub(crate) fn until(&mut self, what: &str, so: impl Fn(&[Party]) -> bool) -> Outcome {
        let end = Instant::now() + PATIENCE;
        while !so(&self.parties) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(event) = self.events.recv_timeout(left) else {
                return Err(format!("no end of waiting: {what}"));
            };
            self.take(event)?;
        }
        Ok(())
    }

    /// Takes events for a while.
    pub(crate) fn for_a_while(&mut self, time: Duration) -> Outcome {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => self.take(event)?,
                Err(_) => return Ok(()),
            }
        }
    }

    fn take(&mut self, event: Event) -> Outcome {
        let (pid, line, out) = match event {
            Event::Out(pid, line) => (pid, line, true),
            Event::Err(pid, line) => (pid, line, false),
        };
        // Lines of a party that has been killed since may still come.
        let Some(party) = self.parties.iter_mut().find(|p| p.child.id() == pid) else {
            return Ok(());
        };
        if !out {
            if line.contains(TAKEN_OVER) {
                party.taken_over += 1;
            }
            if !EXPECTED_LOG.iter().any(|text| line.contains(text)) {
                return Err(format!("a party complains: {line}"));
            }
            return Ok(());
        }
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let mut numbers = words.clone().map(|w| w.parse::<u64>().unwrap_or(0));
        match word {
            "up" => {
                party.up.insert(numbers.next().unwrap_or(0) as usize, true);
            }
            "lost" => {
                let link = numbers.next().unwrap_or(0) as usize;
                party.up.insert(link, false);
                party.totals.lost += 1;
                party.lost.insert(link, numbers.next().unwrap_or(0));
            }
            "counts" => {
                let mut next = || numbers.next().unwrap_or(0);
                party.totals = Totals {
                    lost: party.totals.lost,
                    messages: next(),
                    bytes: next(),
                    rdma: next(),
                    partings: next(),
                };
            }
            "beat" => {
                let pair = |word: &str| {
                    let (id, count) = word.split_once(':')?;
                    Some((id.parse().ok()?, count.parse().ok()?))
                };
                party.beats.push(words.filter_map(pair).collect());
            }
            "ended" => party.ended = true,
            _ => return Err(format!("a party says: {line}")),
        }
        Ok(())
    }

    /// Waits until every end of every party has a working connection.
    pub(crate) fn all_up(&mut self) -> Outcome {
        self.until("every connection works", |parties| {
            let up = |p: &Party| p.ends.iter().all(|end| p.up.get(&end.id) == Some(&true));
            parties.iter().all(up)
        })
    }

    fn order(&mut self, order: &str) -> Outcome {
        for party in &mut self.parties {
            if let Some(orders) = &mut party.orders {
                writeln!(orders, "{order}").map_err(|error| format!("a party is gone: {error}"))?;
            }
        }
        Ok(())
    }

    /// Asks all parties how many messages each end has received.
    pub(crate) fn beat(&mut self) -> Outcome<Vec<HashMap<usize, u64>>> {
        self.parties.iter_mut().for_each(|p| p.beats.clear());
        self.order("beat")?;
        self.until("every party answers", |parties| {
            parties.iter().all(|party| !party.beats.is_empty())
        })?;
        let beats = self.parties.iter_mut().map(|p| p.beats.remove(0));
        Ok(beats.collect())
    }

    /// Waits until every end has received something from now on.
    pub(crate) fn all_alive(&mut self) -> Outcome {
        let before = self.beat()?;
        let end = Instant::now() + PATIENCE;
        loop {
            let now = self.beat()?;
            let mut pairs = before.iter().zip(&now);
            if pairs.all(|(b, n)| b.iter().all(|(id, count)| n.get(id) > Some(count))) {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(format!("a transfer stands still: {before:?} {now:?}"));
            }
            self.for_a_while(Duration::from_millis(10))?;
        }
    }

    /// Kills a party. Gives the moment of the kill.
    pub(crate) fn kill_party(&mut self, which: usize) -> Outcome<u64> {
        for party in &mut self.parties {
            party.lost.clear();
        }
        let victim = &mut self.parties[which];
        let moment = now_ns();
        let killed = victim.child.kill().and_then(|()| victim.child.wait());
        let status = killed.map_err(|error| error.to_string())?;
        if status.signal() != Some(libc::SIGKILL) {
            return Err(format!("a party ended by itself: {status}"));
        }
        let ids: Vec<usize> = victim.ends.iter().map(|end| end.id).collect();
        for party in &mut self.parties {
            party.up.retain(|id, _| !ids.contains(id));
        }
        Ok(moment)
    }

    /// Starts another party in the place of one that was killed.
    pub(crate) fn replace(&mut self, which: usize) -> Outcome {
        let fresh = self.start_party(which, self.parties[which].ends.clone())?;
        let old = std::mem::replace(&mut self.parties[which], fresh);
        self.gone.add(old.totals);
        Ok(())
    }

    /// Waits until all peers of a killed party know, and gives the longest time it took.
    pub(crate) fn all_know(&mut self, which: usize, moment: u64) -> Outcome<Duration> {
        let ids: Vec<usize> = self.parties[which].ends.iter().map(|end| end.id).collect();
        let peers: Vec<(usize, usize)> = ids
            .iter()
            .flat_map(|&id| {
                let has = move |party: &Party| party.ends.iter().any(|end| end.id == id);
                let parties = self.parties.iter().enumerate();
                parties
                    .filter(move |(index, party)| *index != which && has(party))
                    .map(move |(index, _)| (index, id))
            })
            .collect();
        self.until("every peer of a killed process knows", |parties| {
            peers
                .iter()
                .all(|(party, id)| parties[*party].lost.contains_key(id))
        })?;
        let times = peers
            .iter()
            .map(|(party, id)| self.parties[*party].lost[id].saturating_sub(moment));
        Ok(Duration::from_nanos(times.max().unwrap_or(0)))
    }

    /// Kills the agent of the first host.
    pub(crate) fn kill_agent(&mut self) -> Outcome {
        let agent = &mut self.agents[0];
        let killed = agent.kill().and_then(|()| agent.wait());
        killed.map(drop).map_err(|error| error.to_string())
    }

    /// Starts another agent, and waits until it answers.
    pub(crate) fn start_agent(&mut self) -> Outcome {
        self.agents[0] = self.new_agent(0)?;
        Ok(())
    }

    /// What one party has open: descriptors, and mappings of shared memory.
    pub(crate) fn holdings(&self, which: usize) -> Holdings {
        let party = &self.parties[which];
        let pid = party.child.id();
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let mut mappings = BTreeMap::new();
        for (_, name) in maps.lines().filter_map(|line| line.split_once("/memfd:")) {
            *mappings.entry(name.to_owned()).or_default() += 1;
        }
        let memory = mappings.remove(MEMORY).unwrap_or_default();
        Holdings {
            files: open_files(pid),
            mappings,
            memory,
            ends: party.ends.len(),
        }
    }

    /// What was done so far.
    pub(crate) fn totals(&self) -> Totals {
        let mut all = self.gone;
        for party in &self.parties {
            all.add(party.totals);
        }
        all
    }

    /// Ends all parties and the agent, and looks whether anything stays behind.
    pub(crate) fn end(mut self) -> Outcome<Totals> {
        self.order("end")?;
        self.until("every party ends", |parties| {
            parties.iter().all(|p| p.ended)
        })?;
        for party in &mut self.parties {
            let status = party.child.wait().map_err(|error| error.to_string())?;
            if !status.success() {
                return Err(format!("a party ended with {status}"));
            }
        }
        for host in 0..self.agents.len() {
            self.agent_forgets(host)?;
            let agent = &mut self.agents[host];
            // SAFETY: plain arguments; the process is our child and has not been waited for.
            unsafe { libc::kill(agent.id() as i32, libc::SIGTERM) };
            let status = agent.wait().map_err(|error| error.to_string())?;
            if !status.success() {
                return Err(format!("the agent ended with {status}"));
            }
        }
        leftovers(self.folder.path())?;
        Ok(self.totals())
    }

    /// An agent, without parties, has no more open than one that has just started, but for a socket of each device
    /// that it has started.
    fn agent_forgets(&self, host: usize) -> Outcome {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let socket = folder.path().join("agent");
        let mut fresh = start_agent(&self.setting.vipkad, &socket, self.namespace(host))?;
        let end = Instant::now() + PATIENCE;
        let mut open = (0, 0);
        while Instant::now() < end {
            let ours = self.agents[host].id();
            let held = open_files(ours).saturating_sub(children(ours));
            open = (held, open_files(fresh.id()));
            if open.0 == open.1 {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = fresh.kill().and_then(|()| fresh.wait());
        if open.0 == open.1 {
            Ok(())
        } else {
            let (ours, new) = open;
            Err(format!(
                "the agent keeps {ours} files open, a new one {new}"
            ))
        }
    }
}

impl Party {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // After a failure; after a good end none is left.
        for party in &mut self.parties {
            let _ = party.child.kill().and_then(|()| party.child.wait());
        }
        for agent in &mut self.agents {
            let _ = agent.kill().and_then(|()| agent.wait());
        }
    }
}

impl Totals {
    fn add(&mut self, other: Totals) {
        self.lost += other.lost;
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.rdma += other.rdma;
        self.partings += other.partings;
    }
}

fn listen(
    pipe: Option<impl std::io::Read + Send + 'static>,
    sender: Sender<Event>,
    event: impl Fn(String) -> Event + Send + 'static,
) {
    thread::spawn(move || {
        for line in BufReader::new(pipe?).lines() {
            sender.send(event(line.ok()?)).ok()?;
        }
        Some(())
    });
}

/// A program on a host: `ip` becomes the program, so that the process is ours to kill.
fn on_host(namespace: Option<&str>, program: &Path) -> Command {
    let Some(namespace) = namespace else {
        return Command::new(program);
    };
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(program);
    command
}

fn start_agent(program: &Path, socket: &Path, namespace: Option<&str>) -> Outcome<Child> {
    let mut command = on_host(namespace, program);
    command.arg("--socket").arg(socket).args(["--idle-ms", "0"]);
    command.env_remove("VIPL_LOG").env_remove("VIPL_LOG_FILE");
    let child = command.stdin(Stdio::null()).spawn();
    let child = child.map_err(|error| format!("{}: {error}", program.display()))?;
    let end = Instant::now() + PATIENCE;
    while !listens(child.id(), socket) {
        if Instant::now() > end {
            return Err("an agent that does not listen".into());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(child)
}

fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Processes that a process has started and that have not been waited for.
fn children(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let lists = tasks.into_iter().flatten().flatten().map(|task| {
        let list = std::fs::read_to_string(task.path().join("children"));
        list.unwrap_or_default().split_whitespace().count()
    });
    lists.sum()
}

/// Whether a socket, a process or a file of a run is still there after all its processes have ended.
fn leftovers(folder: &Path) -> Outcome {
    let name = folder.to_string_lossy();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    if let Some(line) = sockets.lines().find(|line| line.contains(&*name)) {
        return Err(format!("a socket stays behind: {line}"));
    }
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(&*name) {
            return Err(format!(
                "a process stays behind: {}",
                entry.path().display()
            ));
        }
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        // The lock of an agent's socket stays on purpose.
        if entry.path().extension() != Some("lock".as_ref()) {
            return Err(format!("a file stays behind: {}", entry.path().display()));
        }
    }
    Ok(())
}

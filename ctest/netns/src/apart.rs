//! C tests with one side on each of two hosts, or both on the first. The programs know nothing of it: a small library that is
//! loaded before everything else (`apart.c`) brings program and child to where they belong.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use vipl_ctest::{Build, Program, Run, library_dir, program};

use crate::Namespaces;

/// How long an agent may take to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two hosts with an agent each.
#[derive(Debug)]
pub struct Apart {
    agents: Vec<Child>,
    sockets: Vec<PathBuf>,
    names: Vec<String>,
    /// The users to whom agent and program of each side belong; `None`: root.
    users: Option<[u32; 2]>,
    /// The folder of the sockets, or of theirs, removed at the end.
    folder: PathBuf,
}

impl Apart {
    /// Starts an agent on each of the hosts.
    ///
    /// # Panics
    /// If an agent does not start: that is a failure of the test.
    pub fn new(hosts: &Namespaces) -> Apart {
        Apart::start(hosts, None, None)
    }

    /// The same with a secret, which both agents have.
    ///
    /// # Panics
    /// If an agent does not start.
    pub fn with_secret(hosts: &Namespaces, secret: &Path) -> Apart {
        Apart::start(hosts, None, Some(secret))
    }

    /// The same for a user without privileges: agents and programs are this user's, and use files that it can read.
    ///
    /// # Panics
    /// If an agent does not start.
    pub fn of_user(hosts: &Namespaces, user: u32) -> Apart {
        Apart::start(hosts, Some([user; 2]), None)
    }

    /// Two users on host 0, with an agent each and a secret that both have: side 0 is the first one's, side 1 the second
    /// one's.
    ///
    /// # Panics
    /// If an agent does not start.
    pub fn of_users(hosts: &Namespaces, users: [u32; 2], secret: &str) -> Apart {
        let folder = std::env::temp_dir().join(hosts.name(0));
        std::fs::create_dir_all(&folder).expect("a folder for sockets");
        let file = folder.join("secret");
        std::fs::write(&file, secret).expect("a secret");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("chmod");
        Apart::begin(hosts, &[0, 0], Some(users), Some(&file))
    }

    fn start(hosts: &Namespaces, users: Option<[u32; 2]>, secret: Option<&Path>) -> Apart {
        let all: Vec<usize> = (0..hosts.hosts()).collect();
        Apart::begin(hosts, &all, users, secret)
    }

    /// `sides` are the hosts of the agents.
    fn begin(
        hosts: &Namespaces,
        sides: &[usize],
        users: Option<[u32; 2]>,
        secret: Option<&Path>,
    ) -> Apart {
        let folder = std::env::temp_dir().join(hosts.name(0));
        std::fs::create_dir_all(&folder).expect("a folder for sockets");
        if users.is_some() {
            // The folder of the build may be closed to others. What is in folders there is for tests of MPI.
            for file in std::fs::read_dir(library_dir()).expect("the library") {
                let file = file.expect("a file");
                if file.path().is_dir() {
                    continue;
                }
                std::fs::copy(file.path(), folder.join(file.file_name())).expect("a copy");
            }
        }
        let mut apart = Apart {
            users,
            agents: Vec::new(),
            sockets: Vec::new(),
            names: sides
                .iter()
                .map(|host| hosts.name(*host).to_owned())
                .collect(),
            folder,
        };
        for (side, host) in sides.iter().enumerate() {
            let home = apart.folder.join(format!("side{side}"));
            std::fs::create_dir_all(&home).expect("a folder for a socket");
            let mut agent = match users {
                None => hosts.command(*host, library_dir().join("vipkad")),
                Some(users) => {
                    let user = users[side];
                    std::os::unix::fs::chown(&home, Some(user), Some(user)).expect("chown");
                    let mut agent = hosts.command(*host, "setpriv");
                    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
                    agent.args(ids).arg("--clear-groups");
                    agent.arg(apart.folder.join("vipkad"));
                    agent
                }
            };
            if let Some(secret) = secret {
                let own = home.join("secret");
                std::fs::copy(secret, &own).expect("a secret");
                if let Some(users) = users {
                    let user = users[side];
                    std::os::unix::fs::chown(&own, Some(user), Some(user)).expect("chown");
                }
                agent.env("VIPL_SECRET_FILE", own);
            }
            if hosts.routed {
                agent.env("VIPL_UDP_FROM", "any");
            }
            let socket = home.join("agent");
            let agent = agent
                .args(["--idle-ms", "0", "--socket"])
                .arg(&socket)
                .stdin(Stdio::null())
                .spawn()
                .expect("vipkad");
            apart.agents.push(agent);
            apart.sockets.push(socket);
        }
        let begun = Instant::now();
        let is_ready = |apart: &Apart| {
            let mut all = apart.agents.iter().zip(&apart.sockets);
            all.all(|(agent, socket)| listens(agent.id(), socket))
        };
        while !is_ready(&apart) {
            assert!(begun.elapsed() < PATIENCE, "an agent does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        apart
    }

    /// Kills the agents of both hosts. Others take their places, at the same sockets.
    ///
    /// # Panics
    /// If one does not start.
    pub fn replace_agents(&mut self, hosts: &Namespaces) {
        for host in 0..self.agents.len() {
            let _ = self.agents[host].kill();
            let _ = self.agents[host].wait();
            self.agents[host] = hosts
                .command(host, library_dir().join("vipkad"))
                .args(["--udp-from", if hosts.routed { "any" } else { "subnets" }])
                .args(["--idle-ms", "0", "--socket"])
                .arg(&self.sockets[host])
                .stdin(Stdio::null())
                .spawn()
                .expect("vipkad");
        }
    }

    /// A C program whose side 0 runs on host 0 and whose side 1 runs on host 1, over a device that exists
    /// on both.
    pub fn run(&self, name: &str, device: &str) -> Run {
        self.on_two_hosts(Run::strict(program(name)))
            .env("VIPL_DEVICE_MAP", format!("*={device}"))
            .seconds(240)
    }

    /// Brings the program to side 0 and its first child to side 1, each to the agent there.
    pub fn on_two_hosts(&self, run: Run) -> Run {
        let run = self
            .on_first_host(run)
            .env("APART_THERE", file(&self.names[1]))
            .env("APART_AGENT", &self.sockets[1]);
        match self.users {
            None => run,
            Some([_, there]) => run.env("APART_USER_THERE", there.to_string()),
        }
    }

    /// The folder with the library that programs get.
    pub fn library(&self) -> &Path {
        match self.users {
            None => library_dir(),
            Some(_) => &self.folder,
        }
    }

    /// Brings the program and all that it starts to this host and its agent, as root.
    pub fn on_host(&self, host: usize, run: Run) -> Run {
        enter(&self.names[host], run).env("VIPL_AGENT", &self.sockets[host])
    }

    /// Brings the program and all that it starts to host 0 and its agent.
    pub fn on_first_host(&self, run: Run) -> Run {
        let run = self.on_host(0, run);
        match self.users {
            None => run,
            Some([here, _]) => run
                .env("APART_USER", here.to_string())
                .env("LD_LIBRARY_PATH", &self.folder),
        }
    }
}

/// Whether a process listens on this path: a path is there before its socket listens.
pub fn listens(process: u32, socket: &Path) -> bool {
    // Of the network namespace of the process.
    let all = std::fs::read_to_string(format!("/proc/{process}/net/unix")).unwrap_or_default();
    let path = socket.to_string_lossy();
    // The flag of a socket that listens.
    all.lines()
        .any(|line| line.contains(" 00010000 ") && line.ends_with(&*path))
}

/// Brings a program and all that it starts to host 0; finding an agent there is its own matter.
pub fn on_first_host(hosts: &Namespaces, run: Run) -> Run {
    enter(hosts.name(0), run)
}

fn enter(name: &str, run: Run) -> Run {
    let library = preload(run.build());
    run.preload(&library).env("APART_HERE", file(name))
}

/// The file that stands for a namespace.
fn file(name: &str) -> String {
    format!("/run/netns/{name}")
}

impl Drop for Apart {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The small library for programs of a build; the first call compiles it.
fn preload(build: Build) -> PathBuf {
    static MADE: Mutex<()> = Mutex::new(());
    let _one = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/apart.c");
    // Every test program makes its own: several may run at once.
    let made = build
        .work_dir()
        .join(format!("libapart-{}.so", std::process::id()));
    match made.exists() {
        true => made,
        false => Program::new(source).of(build).shared().build(&made),
    }
}

//! What a run has for itself: a table of hosts with nothing in it, a Kernel Agent, and for the devices of a
//! network interface two hosts with a cable between them.
//!
//! Both processes live on the first host, where peers meet in shared memory, or one on each, where every
//! message goes through the cable. Nothing is shared with other runs, so several can go on at once.

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use vipl_ctest::{Agent as OwnAgent, Run};
use vipl_netns::{Apart, Namespaces, on_first_host};

use crate::plan::{Agent, Form, Planned};

/// Where one run takes place; it is removed with the value, agents before hosts.
pub(crate) struct Ground {
    agents: Agents,
    hosts: Option<Namespaces>,
    dir: TempDir,
}

/// The Kernel Agents of a run.
enum Agents {
    /// The program finds or starts one.
    None,
    /// One on this host.
    Here(OwnAgent),
    /// One on each of two hosts.
    OnHosts(Apart),
}

impl Ground {
    /// For this run, in a folder of its own in this one; the error says what could not be made.
    pub(crate) fn new(run: &Planned, folder: &Path) -> Result<Ground, String> {
        let failed = |what| move |error| format!("{what}: {error}");
        let dir = tempfile::tempdir_in(folder).map_err(failed("a folder"))?;
        std::fs::write(dir.path().join("hosts"), "").map_err(failed("a table of hosts"))?;
        let hosts = match run.provider.on_interface {
            true => Some(Namespaces::pair()?),
            false => None,
        };
        let agents = match (run.agent, &hosts) {
            (Agent::Auto, _) => Agents::None,
            (Agent::Running, Some(hosts)) => Agents::OnHosts(Apart::new(hosts)),
            (Agent::Running, None) => {
                Agents::Here(OwnAgent::start_in(dir.path()).map_err(failed("vipkad"))?)
            }
        };
        Ok(Ground { agents, hosts, dir })
    }

    /// The table of hosts.
    pub(crate) fn table(&self) -> PathBuf {
        self.dir.path().join("hosts")
    }

    /// The command, brought here.
    pub(crate) fn place(&self, run: &Planned, command: Run) -> Run {
        match (&self.agents, &self.hosts) {
            (Agents::Here(agent), _) => command.env("VIPL_AGENT", agent.socket()),
            (Agents::OnHosts(apart), _) if run.form == Some(Form::Apart) => {
                apart.on_two_hosts(command)
            }
            (Agents::OnHosts(apart), _) => apart.on_first_host(command),
            (Agents::None, Some(hosts)) => on_first_host(hosts, command),
            (Agents::None, None) => command,
        }
    }
}

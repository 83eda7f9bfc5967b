//! What this host lets a process do: limits, system calls, memory of others, processors.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vipl_sys::membarrier::{self, Scope};

use super::library::Device;
use super::{Finding, Kind};
use crate::pin::Pair;
use crate::placement::{self, NEAR_NS, Placement};
use crate::sys;

/// Bytes of memory that a process can usually register, whatever its limits.
const USUAL: u64 = 64 << 20;
/// Bytes that shared memory of one connection may need.
const SHARED: u64 = 1 << 20;
/// The first kernel whose scheduler lets groups keep a processor that they should share.
const FORGIVING: (u32, u32) = (6, 13);

/// The files by which the kernel describes the host and this process.
pub(super) struct System(PathBuf);

impl System {
    pub(super) fn this() -> Self {
        Self(PathBuf::from("/"))
    }

    fn text(&self, file: impl AsRef<Path>) -> Option<String> {
        let text = fs::read_to_string(self.0.join(file)).ok()?;
        Some(text.trim().to_owned())
    }

    pub(super) fn limits(&self, device: Option<&Device>) -> Vec<Finding> {
        let mut found = Vec::new();
        let bytes = |bytes: Option<u64>| bytes.map_or("no limit".to_owned(), short);
        let locked = sys::limit(libc::RLIMIT_MEMLOCK);
        let pins = device.is_some_and(|device| device.plugin == "verbs");
        found.push(if pins && locked.is_some_and(|limit| limit < USUAL) {
            Kind::LockedMemory
                .found(format!("ulimit -l is {}", bytes(locked)))
                .mended_by("ulimit -l unlimited, or as root a line `* - memlock unlimited` in /etc/security/limits.conf")
        } else {
            let nic = device.and_then(|device| device.nic.as_ref());
            let most = nic.map(|nic| nic.attributes().register_bytes_max);
            let most = most.map_or(String::new(), |most| match pins {
                true => format!("; the device registers up to {}, and pins all of it", short(most)),
                false => format!(", which does not matter: the device pins nothing, and registers up to {}", short(most)),
            });
            Finding::fine("locked memory", format!("ulimit -l: {}{most}", bytes(locked)))
        });
        let file = sys::limit(libc::RLIMIT_FSIZE);
        if file.is_some_and(|limit| limit < SHARED) {
            let what = format!("ulimit -f is {}", bytes(file));
            found.push(Kind::FileSize.found(what).mended_by("ulimit -f unlimited"));
        }
        found
    }

    /// System calls that containers forbid now and then.
    pub(super) fn calls(&self) -> Vec<Finding> {
        let status = self.text("proc/self/status").unwrap_or_default();
        let is_filtered = status
            .lines()
            .any(|line| line.split_whitespace().eq(["Seccomp:", "2"]));
        let why = match is_filtered {
            true => "; this process has a seccomp filter",
            false => "",
        };
        let mut found = Vec::new();
        let mut refused = |kind: Kind, call: &str, error: &dyn std::fmt::Display| {
            let what = format!("{call}: {error}{why}");
            let mend = format!(
                "allow {call} in the profile of the container (docker: --security-opt seccomp=FILE)"
            );
            found.push(kind.found(what).mended_by(mend));
        };
        if let Err(error) = sys::growing_file() {
            refused(Kind::MemoryFiles, "memfd_create", &error);
        }
        // The library's own registration, if it is loaded, stays as it is.
        if !membarrier::register(Scope::Process) {
            refused(Kind::Barriers, "membarrier", &io::Error::last_os_error());
        }
        if let Err(error) = sys::process_handle(std::process::id()) {
            refused(Kind::ProcessHandles, "pidfd_open", &error);
        }
        if found.is_empty() {
            found.push(Finding::fine(
                "system calls",
                format!("all are permitted{why}"),
            ));
        }
        found
    }

    /// `copied`: what came of a copy from this process's memory by one that it had started.
    pub(super) fn memory_access(&self, copied: io::Result<()>) -> Vec<Finding> {
        let scope = self.text("proc/sys/kernel/yama/ptrace_scope");
        let scope = scope.filter(|scope| scope != "0");
        vec![match (copied, scope) {
            // Also with the capability that Yama asks for.
            (Ok(()), _) => Finding::fine("memory access", "processes of this user may copy from each other"),
            (Err(_), Some(scope)) => Kind::MemoryAccess
                .found(format!("kernel.yama.ptrace_scope is {scope}"))
                .mended_by("as root: sysctl kernel.yama.ptrace_scope=0"),
            (Err(error), None) => Kind::MemoryAccess.found(format!("process_vm_readv: {error}")).mended_by(
                "allow process_vm_readv and process_vm_writev in the profile of the container, or --cap-add SYS_PTRACE",
            ),
        }]
    }

    pub(super) fn processors(&self) -> Vec<Finding> {
        let allowed = sys::allowed_cpus();
        let mut found = vec![match allowed.as_slice() {
            [] | [_] => Kind::OneProcessor
                .found(format!("this process may use CPU {allowed:?} only"))
                .mended_by("taskset -cp 0-63 $$; docker: --cpuset-cpus; or wait (VipRecvWait) instead of polling"),
            _ => near_or_far(placement::pairs(), placement::line_ns),
        }];
        if let Some((quota, group)) = self.quota() {
            let mend = format!(
                "more than two CPUs for {group}: docker --cpus, CPUQuota= of systemd, or VIPL_SPIN_US=0 and waiting"
            );
            found.push(
                Kind::Quota
                    .found(format!("{quota:.1} CPUs for the group {group}"))
                    .mended_by(mend),
            );
        }
        found
    }

    /// The smallest share of processor time of this process's groups, in processors, and whose it is.
    fn quota(&self) -> Option<(f64, String)> {
        let groups = self.text("proc/self/cgroup")?;
        let mut least: Option<(f64, String)> = None;
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let roots: &[&str] = match controllers {
                "" => &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
                list if list.split(',').any(|one| one == "cpu") => {
                    &["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
                }
                _ => continue,
            };
            for root in roots {
                for group in Path::new(path).ancestors() {
                    let folder = Path::new(root).join(group.strip_prefix("/").unwrap_or(group));
                    if let Some(quota) = self.quota_in(&folder)
                        && least.as_ref().is_none_or(|(least, _)| quota < *least)
                    {
                        least = Some((quota, group.display().to_string()));
                    }
                }
            }
        }
        least
    }

    fn quota_in(&self, folder: &Path) -> Option<f64> {
        let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number > 0.0);
        if let Some(text) = self.text(folder.join("cpu.max")) {
            let (quota, period) = text.split_once(' ')?;
            return Some(number(quota)? / number(period)?);
        }
        let quota = number(&self.text(folder.join("cpu.cfs_quota_us"))?)?;
        Some(quota / number(&self.text(folder.join("cpu.cfs_period_us"))?)?)
    }

    pub(super) fn groups(&self) -> Vec<Finding> {
        let release = self.text("proc/sys/kernel/osrelease").unwrap_or_default();
        let on = self
            .text("proc/sys/kernel/sched_autogroup_enabled")
            .is_some_and(|text| text == "1");
        vec![if on && version(&release) >= FORGIVING {
            Kind::Groups
                .found(format!(
                    "kernel.sched_autogroup_enabled is 1 on Linux {release}"
                ))
                .mended_by("as root: sysctl kernel.sched_autogroup_enabled=0")
        } else {
            let state = match on {
                true => format!("one for each session, between which Linux {release} shares a processor fairly, also while a program polls"),
                false => "none for sessions: a program that polls shares its processor with those of other sessions".to_owned(),
            };
            Finding::fine("scheduler groups", state)
        }]
    }
}

/// A number of bytes to two or three digits, as far as they matter.
fn short(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{bytes} bytes"),
        0x10_0000..0x4000_0000 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Major and minor number of a kernel.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|text| text.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// What the usual pairs of processors are; `line_ns` measures one.
fn near_or_far(
    pairs: crate::Result<Vec<Pair>>,
    line_ns: impl Fn(Pair) -> crate::Result<f64>,
) -> Finding {
    let timed = pairs.and_then(|pairs| {
        let timed = pairs.into_iter().map(|pair| Ok((pair, line_ns(pair)?)));
        timed.collect::<crate::Result<Vec<(Pair, f64)>>>()
    });
    let timed = match timed {
        Ok(timed) => timed,
        Err(error) => return Finding::unknown("processors", error.to_string()),
    };
    let texts = timed.iter().map(|(pair, ns)| {
        let place = Placement::of(*ns).name();
        format!(
            "a cache line takes {ns:.0} ns from CPU {} to CPU {}, which is {place}",
            pair.0, pair.1
        )
    });
    let text = texts.collect::<Vec<_>>().join("; ");
    let text = format!(
        "{text} (near: less than {NEAR_NS:.0} ns, as within one part of the cache; far: more)"
    );
    let near = timed
        .iter()
        .find(|(_, ns)| Placement::of(*ns) == Placement::Near);
    match near {
        Some((pair, _))
            if timed
                .iter()
                .any(|(_, ns)| Placement::of(*ns) == Placement::Far) =>
        {
            let mend = format!(
                "taskset -c {} PROGRAM, and taskset -c {} for its peer",
                pair.0, pair.1
            );
            Kind::FarProcessors.found(text).mended_by(mend)
        }
        _ => Finding::fine("processors", text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host of these files.
    fn system(name: &str, files: &[(&str, &str)]) -> System {
        let root = std::env::temp_dir().join(format!("vipl-why-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (file, text) in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        System(root)
    }

    impl Drop for System {
        fn drop(&mut self) {
            if self.0.starts_with(std::env::temp_dir()) {
                let _ = fs::remove_dir_all(&self.0);
            }
        }
    }

    fn names(found: &[Finding]) -> Vec<&str> {
        found.iter().map(Finding::name).collect()
    }

    #[test]
    fn quotas_of_both_kinds_of_cgroups_are_found_also_in_a_group_above() {
        let two = system(
            "v2",
            &[
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
                ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ],
        );
        assert_eq!(two.quota(), Some((1.5, "/a".to_owned())));
        let one = system(
            "v1",
            &[
                ("proc/self/cgroup", "5:cpuset:/x\n4:cpu,cpuacct:/y\n"),
                ("sys/fs/cgroup/cpu,cpuacct/y/cpu.cfs_quota_us", "50000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/y/cpu.cfs_period_us", "100000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
            ],
        );
        assert_eq!(one.quota(), Some((0.5, "/y".to_owned())));
        assert_eq!(
            system("none", &[("proc/self/cgroup", "0::/\n")]).quota(),
            None
        );
        assert!(names(&two.processors()).contains(&"quota"));
    }

    #[test]
    fn groups_matter_on_kernels_that_forgive() {
        let host = |name, release, on| {
            let files = [
                ("proc/sys/kernel/osrelease", release),
                ("proc/sys/kernel/sched_autogroup_enabled", on),
            ];
            names(&system(name, &files).groups()).join(" ")
        };
        assert_eq!(host("new", "6.18.44-generic\n", "1\n"), "groups");
        assert_eq!(host("off", "6.18.44\n", "0\n"), "scheduler groups");
        assert_eq!(host("old", "5.10.0-8\n", "1\n"), "scheduler groups");
    }

    #[test]
    fn memory_of_others_is_refused_by_yama_or_by_a_filter() {
        let yama = system("yama", &[("proc/sys/kernel/yama/ptrace_scope", "1\n")]);
        let refused = || Err(io::ErrorKind::PermissionDenied.into());
        let found = yama.memory_access(refused());
        assert_eq!(found[0].found(), "kernel.yama.ptrace_scope is 1");
        let mend = found[0].mend().unwrap();
        assert!(mend.contains("sysctl kernel.yama.ptrace_scope=0"));
        assert_eq!(names(&yama.memory_access(Ok(()))), ["memory access"]);
        let filter = system("filter", &[]);
        assert_eq!(names(&filter.memory_access(refused())), ["memory-access"]);
        assert_eq!(names(&filter.memory_access(Ok(()))), ["memory access"]);
    }

    #[test]
    fn one_near_and_one_far_pair_are_worth_a_word() {
        let pairs = || Ok(vec![Pair(0, 1), Pair(0, 8)]);
        let mixed = near_or_far(pairs(), |pair| Ok(if pair.1 == 1 { 60.0 } else { 200.0 }));
        assert_eq!(mixed.name(), "far-processors");
        assert!(
            mixed
                .mend()
                .unwrap()
                .starts_with("taskset -c 0 PROGRAM, and taskset -c 1")
        );
        assert_eq!(near_or_far(pairs(), |_| Ok(200.0)).name(), "processors");
        let failed = || Err(crate::Error::Silence("waiting"));
        assert_eq!(
            near_or_far(pairs(), |_| failed()).verdict(),
            super::super::Verdict::Unknown
        );
    }

    #[test]
    fn bytes_are_short() {
        let texts = [0, 65_536, 8 << 20, 25_276_502_016, u64::MAX].map(short);
        assert_eq!(texts[..4], ["0 bytes", "65536 bytes", "8 MiB", "23.5 GiB"]);
        assert!(texts[4].ends_with(" GiB"));
    }

    #[test]
    fn this_host_can_be_asked() {
        let this = System::this();
        assert!(!this.calls().is_empty() && !this.limits(None).is_empty());
        assert_eq!(this.memory_access(sys::copy_to_parent()).len(), 1);
    }
}

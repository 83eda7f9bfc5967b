//! Other libraries' own measuring tools, run on the same two processors: UCX's `ucx_perftest` and
//! libfabric's `fi_pingpong`, where `PATH` has them.
//!
//! The tools are used as their authors deliver them, restricted to what one host offers (`UCX_TLS`, `-p
//! shm`), and UCX to its faster transport. Of a latency the tool's median is read, of a stream the rate over all of it.

#![forbid(unsafe_code)]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use vipl_tools::pin::Pair;
use vipl_tools::{Error, Result, sys};

/// A measurement of another library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Active messages, one way.
    UcxAm,
    /// The mean of the same, not the median.
    UcxAmMean,
    /// Tagged messages, one way.
    UcxTag,
    /// Put into memory that UCX allocated, polled, one way.
    UcxPut,
    /// A stream of tagged messages, in messages.
    UcxTagRate,
    /// A stream of tagged messages, in bytes.
    UcxTagStream,
    /// A stream of puts, in bytes.
    UcxPutStream,
    /// Messages over shared memory, one way.
    Libfabric,
}

/// A program that measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    UcxPerftest,
    FiPingpong,
}

const TOOLS: [Tool; 2] = [Tool::UcxPerftest, Tool::FiPingpong];

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Self::UcxPerftest => "ucx_perftest",
            Self::FiPingpong => "fi_pingpong",
        }
    }

    /// The program that prints the library's version, and its option.
    fn version(self) -> (&'static str, &'static str) {
        match self {
            Self::UcxPerftest => ("ucx_info", "-v"),
            Self::FiPingpong => ("fi_info", "--version"),
        }
    }

    fn library(self) -> &'static str {
        match self {
            Self::UcxPerftest => "UCX",
            Self::FiPingpong => "libfabric",
        }
    }

    /// The packages that have it.
    fn package(self) -> &'static str {
        match self {
            Self::UcxPerftest => "Debian, Ubuntu: ucx-utils; Fedora: ucx",
            Self::FiPingpong => "Debian, Ubuntu: libfabric-bin; Fedora: libfabric",
        }
    }
}

impl Peer {
    /// Its name in tables, the unit of its figure, and the test of `ucx_perftest` or none.
    fn about(self) -> (&'static str, &'static str, Option<&'static str>) {
        match self {
            Self::UcxAm => ("UCX am", "ns", Some("ucp_am_lat")),
            Self::UcxAmMean => ("UCX am, mean", "ns", Some("ucp_am_lat")),
            Self::UcxTag => ("UCX tag", "ns", Some("tag_lat")),
            Self::UcxPut => ("UCX put", "ns", Some("ucp_put_lat")),
            Self::UcxTagRate => ("UCX tag", "M/s", Some("tag_bw")),
            Self::UcxTagStream => ("UCX tag", "GB/s", Some("tag_bw")),
            Self::UcxPutStream => ("UCX put", "GB/s", Some("ucp_put_bw")),
            Self::Libfabric => ("libfabric", "ns", None),
        }
    }

    /// Its name in tables.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        self.about().0
    }

    /// The unit of its figure.
    #[must_use]
    pub(crate) fn unit(self) -> &'static str {
        self.about().1
    }

    fn tool(self) -> Tool {
        match self.about().2 {
            Some(_) => Tool::UcxPerftest,
            None => Tool::FiPingpong,
        }
    }

    /// The transports of UCX to choose from; the fastest counts. For streams, whether the kernel copies once or two
    /// processes copy twice decides, and either may be faster.
    fn transports(self) -> &'static [&'static str] {
        match self.unit() {
            "ns" => &["posix,cma,self"],
            _ => &["posix,cma,self", "posix,self"],
        }
    }

    /// Round trips or messages that take some hundred milliseconds.
    fn iterations(self, bytes: usize) -> u64 {
        match (self.unit(), bytes) {
            ("M/s", 0..=1024) => 2_000_000,
            (_, 0..=1024) => 100_000,
            (_, ..=16384) => 30_000,
            (_, ..=65536) => 10_000,
            (_, ..=262_144) => 3_000,
            _ => 600,
        }
    }

    /// What the server and the client are started with.
    fn arguments(self, bytes: usize, port: u16) -> [Vec<String>; 2] {
        let count = self.iterations(bytes);
        let (server, client) = match self.about().2 {
            Some(test) => {
                let warm = count / 10;
                let client =
                    format!("localhost -p {port} -t {test} -s {bytes} -n {count} -w {warm} -f -v");
                (format!("-p {port}"), client)
            }
            None => {
                let both = format!("-p shm -e rdm -I {count} -S {bytes}");
                (
                    format!("{both} -B {port}"),
                    format!("{both} -P {port} localhost"),
                )
            }
        };
        [server, client].map(|line| line.split(' ').map(str::to_owned).collect())
    }

    /// The figure in what the client printed, in this peer's unit.
    fn figure(self, bytes: usize, printed: &str) -> Option<f64> {
        match self.unit() {
            "ns" if self == Self::Libfabric => fi_microseconds(printed).map(|us| us * 1e3),
            "ns" if self == Self::UcxAmMean => {
                ucx_column(printed, "overall_lat").map(|us| us * 1e3)
            }
            "ns" => ucx_column(printed, "percentile_lat").map(|us| us * 1e3),
            "M/s" => ucx_column(printed, "overall_mr").map(|rate| rate / 1e6),
            _ => ucx_column(printed, "overall_mr").map(|rate| rate * bytes as f64 / 1e9),
        }
    }
}

/// The value under the heading that ends with `name`, in the last line of the CSV of `ucx_perftest -v`.
fn ucx_column(printed: &str, name: &str) -> Option<f64> {
    let heading = printed
        .lines()
        .position(|line| line.starts_with("iterations,"))?;
    let mut lines = printed.lines().skip(heading);
    let column = lines
        .next()?
        .split(',')
        .position(|word| word.trim().ends_with(name))?;
    // Small counts of iterations are set off to the right.
    let is_row = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let row = lines.map(str::trim_start).filter(is_row).last()?;
    positive(row.split(',').nth(column)?)
}

/// The one-way time in the last line of the table of `fi_pingpong`.
fn fi_microseconds(printed: &str) -> Option<f64> {
    let heading = printed.lines().find(|line| line.starts_with("bytes"))?;
    let headings: Vec<&str> = heading.split_whitespace().collect();
    let column = headings.iter().position(|word| *word == "usec/xfer")?;
    let mut lines = printed.lines();
    let row = lines.rfind(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    let cells: Vec<&str> = row.split_whitespace().collect();
    // A row of a truncated table has another number of cells.
    (cells.len() == headings.len()).then(|| positive(cells[column]))?
}

fn positive(text: &str) -> Option<f64> {
    let value: f64 = text.trim().parse().ok()?;
    (value.is_finite() && value > 0.0).then_some(value)
}

/// The first word that looks like a version.
fn version_in(printed: &str) -> Option<String> {
    let mut words = printed
        .split_whitespace()
        .map(|word| word.trim_matches([':', ',']));
    let is_version =
        |word: &str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
    words.find(|word| is_version(word)).map(str::to_owned)
}

/// The setting of UCX that restricts it to some transports.
const TRANSPORTS: &str = "UCX_TLS";

/// The peers that this machine has.
#[derive(Clone, Debug)]
pub(crate) struct Peers {
    cpus: Pair,
    programs: [Option<PathBuf>; 2],
    versions: [Option<String>; 2],
}

impl Peers {
    /// Looks for the tools; they will run on these processors.
    #[must_use]
    pub(crate) fn find(cpus: Pair) -> Self {
        let programs = TOOLS.map(|tool| in_path(tool.program()));
        let versions = TOOLS.map(|tool| {
            let (program, option) = tool.version();
            let output = Command::new(in_path(program)?).arg(option).output().ok()?;
            version_in(&String::from_utf8_lossy(&output.stdout))
        });
        Self {
            cpus,
            programs,
            versions,
        }
    }

    /// What is there and what is not, one line each.
    #[must_use]
    pub(crate) fn lines(&self) -> Vec<String> {
        let described = TOOLS.iter().enumerate().map(|(index, tool)| {
            let (library, program) = (tool.library(), tool.program());
            match (&self.programs[index], &self.versions[index]) {
                (Some(path), Some(version)) => format!("{library} {version}, {}", path.display()),
                (Some(path), None) => format!("{library} of unknown version, {}", path.display()),
                (None, _) => {
                    let package = tool.package();
                    format!("{library} is not measured: {program} is not installed ({package})")
                }
            }
        });
        described.collect()
    }

    /// Whether a peer can be measured.
    #[must_use]
    pub(crate) fn has(&self, peer: Peer) -> bool {
        self.programs[peer.tool() as usize].is_some()
    }

    /// Measures a peer, in its unit; None if its tool is not installed.
    ///
    /// # Errors
    /// The tool fails, does not end, or prints something else than expected.
    pub(crate) fn measure(&self, peer: Peer, bytes: usize) -> Result<Option<f64>> {
        let Some(program) = &self.programs[peer.tool() as usize] else {
            return Ok(None);
        };
        if std::env::var_os(TRANSPORTS).is_some() {
            return self.measure_by(program, peer, bytes, None).map(Some);
        }
        let by = |transport: &&'static str| self.measure_by(program, peer, bytes, Some(transport));
        let figures: Vec<Result<f64>> = peer.transports().iter().map(by).collect();
        // All of one unit: several transports are measured for rates only.
        let best = figures.iter().flatten().copied().reduce(f64::max);
        match best {
            Some(best) => Ok(Some(best)),
            None => figures.into_iter().next().transpose(),
        }
    }

    /// Measures a peer over these transports of UCX, or over what the environment names.
    fn measure_by(
        &self,
        program: &Path,
        peer: Peer,
        bytes: usize,
        transports: Option<&str>,
    ) -> Result<f64> {
        let port = free_port()?;
        let name = peer.tool().program();
        let [server, client] = peer.arguments(bytes, port);
        let start = |arguments: &[String], cpu: usize| {
            let mut command = Command::new(program);
            command.args(arguments);
            if let Some(transports) = transports {
                command.env(TRANSPORTS, transports);
            }
            sys::start_on(&mut command, Some(cpu));
            sys::end_with_this(&mut command);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child = command
                .spawn()
                .map_err(|error| Error::io(format!("starting {name}"), error))?;
            Ok::<_, Error>(Running(child))
        };
        let mut server = start(&server, self.cpus.1)?;
        server.await_listener(port, name)?;
        let output = start(&client, self.cpus.0)?.finish(name)?;
        let printed = String::from_utf8_lossy(&output.stdout);
        if let (true, Some(figure)) = (output.status.success(), peer.figure(bytes, &printed)) {
            return Ok(figure);
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let stderr = stderr
            .lines()
            .chain(printed.lines())
            .find(|line| !line.trim().is_empty());
        let stderr = stderr.unwrap_or("nothing").to_owned();
        Err(Error::Peer(format!(
            "{name} gave no figure; it said: {stderr}"
        )))
    }
}

/// Seconds that a tool may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A tool that runs; killed when dropped.
struct Running(Child);

impl Running {
    /// Waits until the server accepts connections.
    fn await_listener(&mut self, port: u16, name: &'static str) -> Result<()> {
        let start = Instant::now();
        while !listens(port) {
            let ended = self.0.try_wait().map_err(|error| Error::io(name, error))?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                return Err(Error::Peer(format!("{name} did not become a server")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until the client has ended. What it prints fits into a pipe.
    fn finish(mut self, name: &'static str) -> Result<Output> {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().map_err(|error| Error::io(name, error))? {
                break status;
            }
            if start.elapsed() > PATIENCE {
                return Err(Error::Silence("waiting for the tool of a peer"));
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |pipe: Option<&mut dyn std::io::Read>| {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                pipe.read_to_end(&mut bytes)
                    .map_err(|error| Error::io(name, error))?;
            }
            Ok::<_, Error>(bytes)
        };
        let stdout = read(self.0.stdout.as_mut().map(|pipe| pipe as _))?;
        let stderr = read(self.0.stderr.as_mut().map(|pipe| pipe as _))?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file of a program.
pub(crate) fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener
        .map(|address| address.port())
        .map_err(|error| Error::io("looking for a port", error))
}

/// Whether a process of this machine listens on a TCP port. A connection as a test would be the server's
/// only one.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| std::fs::read_to_string(table).is_ok_and(|text| is_listening(&text, port)))
}

fn is_listening(table: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut cells = line.split_whitespace().skip(1);
        let here = cells
            .next()
            .is_some_and(|address| address.ends_with(&local));
        here && cells.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UCX: &str =
        "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr
100000,0.033,0.059,0.059,128.51,128.51,16843783,16843000
1000000,0.167,0.172,0.173,44.36,44.36,5814540,5814000
";
    const FI: &str =
        "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
8       20k     =20k     312k        0.02s     13.55       0.59       1.69
";

    #[test]
    fn figures_of_ucx_are_read() {
        assert_eq!(Peer::UcxAm.figure(8, UCX), Some(167.0));
        assert_eq!(Peer::UcxTagRate.figure(8, UCX), Some(5.814));
        assert_eq!(Peer::UcxTagStream.figure(1000, UCX), Some(5.814));
        // The header of what the test measures comes before it in some versions.
        let with_box = format!("+---+\n| API: protocol layer |\n{UCX}");
        assert_eq!(Peer::UcxPut.figure(8, &with_box), Some(167.0));
        let heading = UCX.lines().next().unwrap();
        let few = format!("{heading}\n 600,105.3,118.3,118.3,8452.48,8452.48,8452,8452\n");
        assert_eq!(
            Peer::UcxTagStream.figure(1 << 20, &few).map(f64::round),
            Some(9.0)
        );
    }

    #[test]
    fn figures_of_libfabric_are_read() {
        assert_eq!(Peer::Libfabric.figure(8, FI), Some(590.0));
    }

    #[test]
    fn what_is_no_figure_is_not_read() {
        let heading = UCX.lines().next().unwrap();
        for text in [
            "",
            "error: invalid test",
            heading,
            "1,2,3",
            "iterations,x\n1,2\n",
        ] {
            assert_eq!(Peer::UcxAm.figure(8, text), None, "{text}");
            assert_eq!(Peer::Libfabric.figure(8, text), None, "{text}");
        }
        let nothing = format!("{heading}\n100,0.000,0,0,0,0,0,0\n");
        assert_eq!(Peer::UcxAm.figure(8, &nothing), None);
        assert_eq!(Peer::Libfabric.figure(8, &FI.replace("1.69", "")), None);
    }

    #[test]
    fn versions_are_found() {
        let of = |text: &str| version_in(text).unwrap_or_default();
        assert_eq!(
            of("# Library version: 1.22.0\n# Library path: /lib"),
            "1.22.0"
        );
        assert_eq!(of("# Version 1.13.1\n# Git branch '<unknown>'"), "1.13.1");
        assert_eq!(of("fi_info: 1.17.0\nlibfabric: 1.17.0"), "1.17.0");
        assert_eq!(version_in("no version"), None);
    }

    #[test]
    fn a_listener_is_found() {
        let table = "  sl  local_address rem_address   st tx_queue
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000
";
        assert!(is_listening(table, 8080));
        assert!(!is_listening(table, 8081) && !is_listening(table, 80));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        // A process that another test starts may have it until it executes its program.
        let end = Instant::now() + Duration::from_secs(5);
        while listens(port) && Instant::now() < end {
            std::thread::yield_now();
        }
        assert!(!listens(port));
    }

    #[test]
    fn a_tool_that_is_not_there_is_named_and_not_measured() {
        let none = Peers {
            cpus: Pair(0, 0),
            programs: [None, None],
            versions: [None, None],
        };
        assert_eq!(none.measure(Peer::UcxAm, 8).unwrap(), None);
        assert!(!none.has(Peer::Libfabric));
        let expected = "libfabric is not measured: fi_pingpong is not installed (Debian, Ubuntu: libfabric-bin;";
        assert!(none.lines()[1].starts_with(expected));
    }

    #[test]
    fn a_tool_that_fails_is_an_error_with_its_words() {
        let program = |path: &str| Peers {
            cpus: Pair(sys::allowed_cpus()[0], sys::allowed_cpus()[0]),
            programs: [Some(path.into()), None],
            versions: [None, None],
        };
        let error = program("/bin/false").measure(Peer::UcxAm, 8).unwrap_err();
        assert!(
            error.to_string().contains("did not become a server"),
            "{error}"
        );
    }
}

//! What a plug-in can do: what VipQueryNic says of its device, and what has to be tried.
//!
//! It is asked in a process of its own, since the plug-in may crash or hang.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use vipl_client::{
    Access, Buffer, Code, Descriptor, Error, Library, Nic, Ptag, Region, Reliability, Request, Vi,
    ViOptions,
};
use vipl_ctest::{Limits, Run};

use crate::provider::{Abilities, DISCOVERY, NO_READ, NONE, RD, READ, RR, U, WRITE};
use crate::run;

/// After this time it is said that the plug-in has not answered yet.
const WORD: Duration = Duration::from_secs(5);
/// Processor time of all that asks it; it takes milliseconds.
const ASKING: Duration = Duration::from_secs(60);

/// How long each step may take.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
/// Bytes of the message that is written.
const BYTES: u32 = 64;

/// In the process of its own: finds the plug-in of this file, opens its device and prints what it is.
pub(crate) fn print(file: &Path, argument: &str) -> Result<Value, String> {
    let library = Library::open().map_err(|error| error.to_string())?;
    let plugins = library.describe("plugins").unwrap_or_default();
    let plugins: Value = serde_json::from_str(&plugins).map_err(|error| error.to_string())?;
    let same = |plugin: &&Value| {
        let path = plugin["path"].as_str().map(Path::new);
        path.is_some_and(|path| {
            path.file_name() == file.file_name() && path.parent() == file.parent()
        })
    };
    let mut all = plugins.as_array().into_iter().flatten();
    let plugin = all.find(same).ok_or("the library does not find it")?;
    if plugin["state"] != "loaded" {
        let reason = plugin["reason"].as_str().unwrap_or("unknown");
        return Err(format!("the library refuses it: {reason}"));
    }
    let name = plugin["name"].as_str().unwrap_or_default();
    let device = format!("{name}:{argument}");
    let nic = Nic::open(library, &device).map_err(|error| error.to_string())?;
    let attributes = nic.attributes();
    Ok(json!({
        "plugin": name,
        "version": plugin["version"],
        "device": device,
        "levels": attributes.reliability.bits(),
        "read": attributes.rdma_read.bits(),
        "write": writes(&nic).map_err(|error| format!("{device}: {error}"))?,
        "discovery": discovers(&nic).map_err(|error| format!("{device}: {error}"))?,
    }))
}

/// Asks the plug-in what it can do; `file` is the only one in its folder.
pub(crate) fn ask(file: &Path, argument: &str, patience: Duration) -> Result<Value, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let library = vipl_ctest::library_dir().join("libvipl.so.1");
    let limits = Limits {
        processor_time: ASKING,
        idle: patience,
    };
    let mut started = Run::compatible(own)
        .seconds(run::WATCHDOG_SECONDS)
        .limits(limits)
        .env("VIPL_LIBRARY", library)
        .env("VIPL_PLUGIN_PATH", file.parent().unwrap_or(file))
        .env("VIPL_AGENT", "off")
        .arg("--probe")
        .arg("--plugin")
        .arg(file)
        .arg("--device")
        .arg(argument)
        .start();
    let word = WORD.min(patience);
    if run::outlasts(&mut started, word) {
        eprintln!(
            "{} ... has not said after {} s what it can do: a constructor, init or a first call has not returned; it is ended when nothing has been done for {} s",
            file.file_name().unwrap_or_default().display(),
            word.as_secs(),
            patience.as_secs()
        );
    }
    let finished = started.finish();
    let answer = finished
        .stdout
        .lines()
        .find_map(|line| serde_json::from_str::<Value>(line).ok());
    let said = finished.stderr.trim();
    match answer {
        Some(answer) => match answer["error"].as_str() {
            Some(error) => Err(format!("{error}\n{said}").trim_end().to_owned()),
            None => Ok(answer),
        },
        None if finished.timed_out => {
            let why = finished.complaint().unwrap_or_default();
            Err(format!(
                "the plug-in does not answer; asking it {why}\n{said}"
            ))
        }
        None => Err(format!(
            "asking the plug-in ended with {}\n{said}",
            finished.status
        )),
    }
}

/// The abilities in an answer of [`print`].
pub(crate) fn abilities(answer: &Value) -> Abilities {
    let levels = answer["levels"].as_u64().unwrap_or(0);
    let when = |holds: bool, ability| if holds { ability } else { NONE };
    let has = |level: Reliability, ability| when(levels & u64::from(level.bits()) != 0, ability);
    let reads = answer["read"].as_u64().is_some_and(|levels| levels != 0);
    has(Reliability::UNRELIABLE, U)
        .and(has(Reliability::DELIVERY, RD))
        .and(has(Reliability::RECEPTION, RR))
        .and(if reads { READ } else { NO_READ })
        .and(when(answer["write"] == true, WRITE))
        .and(when(answer["discovery"] == true, DISCOVERY))
}

fn discovers(nic: &Nic) -> Result<bool, Error> {
    match nic.discover(1) {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(Code::NotSupported) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether an RDMA Write between two VIs of this process completes without an error. VIPL has no attribute for it.
fn writes(nic: &Nic) -> Result<bool, Error> {
    let attributes = nic.attributes();
    let levels = attributes.reliability;
    let known = [
        Reliability::DELIVERY,
        Reliability::RECEPTION,
        Reliability::UNRELIABLE,
    ];
    let level = known
        .into_iter()
        .find(|level| levels.contains(*level))
        .unwrap_or(Reliability::DELIVERY);
    let mut options = ViOptions::new(level, u64::from(BYTES));
    options.rdma_write = true;
    let ptag = Ptag::new(nic)?;
    let region = Region::new(&ptag, BYTES as usize, Access::WRITE)?;
    let name = b"vip_conform".as_slice();
    let name = &name[..name.len().min(attributes.discriminator_max as usize)];
    let here = nic.address(name);
    let idle = Vi::new(&ptag, options, None, None)?;
    std::thread::scope(|scope| {
        let server = scope.spawn(|| -> Result<_, Error> {
            let vi = Vi::new(&ptag, options, None, None)?;
            match Request::wait(nic, &here, PATIENCE)? {
                Some(request) => request
                    .accept(vi)
                    .map(Some)
                    .map_err(|refused| refused.error),
                None => Ok(None),
            }
        });
        let client = connected(idle, &here)?;
        let Ok(accepted) = server.join() else {
            return Ok(false);
        };
        let Some(_server) = accepted? else {
            return Ok(false);
        };
        let mut write = Descriptor::new(&ptag, 2)?;
        write.attach(Buffer::new(&ptag, BYTES)?);
        write.set_write(BYTES, region.remote(0, BYTES as usize));
        if client.post_send(write).is_err() {
            return Ok(false);
        }
        // An error completes it as well.
        Ok(matches!(client.send_wait(PATIENCE), Ok(Some(_))))
    })
}

fn connected(
    mut idle: Vi<vipl_client::Idle>,
    there: &vipl_client::Address,
) -> Result<Vi<vipl_client::Connected>, Error> {
    let begun = std::time::Instant::now();
    loop {
        match idle.connect(there, there, PATIENCE) {
            Ok(connected) => return Ok(connected),
            // The server does not wait yet.
            Err(refused)
                if refused.error.code() == Some(Code::NoMatch)
                    && PATIENCE.is_some_and(|patience| begun.elapsed() < patience) =>
            {
                idle = refused.value;
            }
            Err(refused) => return Err(refused.error),
        }
    }
}

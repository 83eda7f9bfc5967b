//! Finding and loading plug-ins (`libvipl_NAME.so`).
//!
//! The directories are looked through at every VipOpenNic, so a file that was dropped in counts at once.
//! A plug-in is checked as data before any of its code runs, opened `RTLD_NOW | RTLD_LOCAL |
//! RTLD_NODELETE`, and never closed. Each refusal says the file, what was expected and what was found,
//! once; the others go on.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char};
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use libloading::os::unix::Library;
use once_cell::sync::OnceCell;
use vipl_plugin_abi::*;

use crate::agent::library_path;
use crate::error::is_shortage;
use crate::settings::{BadDeclaration, Settings};

/// Feature bits of plug-ins that this library knows.
const FEATURES_KNOWN: u64 = 0;

/// Rank of a plug-in for its own devices, if it claims none itself.
const CLAIM_RANK: i32 = 10;

/// A plug-in that may be used.
pub(crate) struct LoadedPlugin {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) path: PathBuf,
    pub(crate) ops: vipl_provider,
}

// SAFETY: the table is constant and its functions may be called from every thread.
unsafe impl Sync for LoadedPlugin {}
// SAFETY: as above.
unsafe impl Send for LoadedPlugin {}

/// Why a file was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("cannot be loaded: {0}")]
    Load(String),
    #[error("has no symbol vipl_plugin_v{VIPL_PLUGIN_ABI_MAJOR}")]
    NoSymbol,
    #[error("{field}: expected {expected:#x}, found {found:#x}")]
    Mismatch {
        field: &'static str,
        expected: u64,
        found: u64,
    },
    #[error(
        "{field}: {found:#x} does not go with abi_minor {minor}; the size is {ours:#x} in this library, with abi_minor {VIPL_PLUGIN_ABI_MINOR}"
    )]
    Size {
        field: &'static str,
        minor: u16,
        found: usize,
        ours: usize,
    },
    #[error("name: expected {expected:?} from the file's name, found {found:?}")]
    Name { expected: String, found: String },
    #[error("asks for features {0:#x} that this library does not have")]
    Features(u64),
    #[error("has no operation {0}, which every plug-in needs")]
    MissingOp(&'static str),
    #[error(transparent)]
    Setting(#[from] BadDeclaration),
    #[error("init failed with status {0}")]
    Init(i32),
}

/// One file that was looked at.
pub(crate) struct Seen {
    modified: Option<SystemTime>,
    pub(crate) outcome: Result<&'static LoadedPlugin, Refusal>,
}

/// All plug-ins of the process.
#[derive(Default)]
pub(crate) struct Plugins {
    pub(crate) seen: HashMap<PathBuf, Seen>,
    /// What the system had too little of at the last look, if anything: there may be plug-ins unseen.
    pub(crate) shortage: Option<String>,
    /// Folders of the last look, and plug-ins that the setting `plugins` has left out.
    pub(crate) searched: Vec<PathBuf>,
    pub(crate) left_out: Vec<String>,
    /// Folders that cannot be read, of which there was a line.
    unreadable: HashSet<PathBuf>,
    order: Vec<&'static LoadedPlugin>,
}

impl Plugins {
    /// Looks through the directories and gives the usable plug-ins, first of a name first.
    pub(crate) fn refresh(
        &mut self,
        settings: &Settings,
        host: &'static vipl_host,
    ) -> &[&'static LoadedPlugin] {
        self.shortage = None;
        self.left_out.clear();
        self.searched = directories(settings);
        let given = settings.text("plugin_path");
        for directory in self.searched.clone() {
            let found = candidates(&directory).unwrap_or_else(|error| {
                self.cannot_read(&directory, given, &error);
                Vec::new()
            });
            for (name, path) in found {
                if !wanted(settings.text("plugins"), &name) {
                    self.left_out.push(name);
                } else if !self.order.iter().any(|plugin| plugin.name == name) {
                    self.consider(&name, path, settings, host);
                }
            }
        }
        settings.report_undeclared(&self.unknown());
        &self.order
    }

    /// A folder cannot be read. The usual ones need not be there; one that the user has named should.
    fn cannot_read(&mut self, directory: &Path, given: &str, error: &io::Error) {
        if is_shortage(error) {
            self.shortage = Some(format!("{}: {error}", directory.display()));
            return;
        }
        let named = given.split(':').any(|name| Path::new(name) == directory);
        let strange = named || error.kind() != io::ErrorKind::NotFound;
        if strange && self.unreadable.insert(directory.to_owned()) {
            let setting = if named { " (setting plugin_path)" } else { "" };
            log::warn!(
                target: "plugin",
                "no plug-ins from the folder {}{setting}: {error}", directory.display()
            );
        }
    }

    /// Plug-ins that were found and are not used.
    fn unknown(&self) -> Vec<String> {
        let refused = self.seen.iter().filter(|(_, seen)| seen.outcome.is_err());
        let refused = refused.filter_map(|(path, _)| name_of(path.file_name()?.to_str()?));
        refused
            .map(str::to_owned)
            .chain(self.left_out.clone())
            .collect()
    }

    fn consider(
        &mut self,
        name: &str,
        path: PathBuf,
        settings: &Settings,
        host: &'static vipl_host,
    ) {
        let modified = path.metadata().and_then(|data| data.modified()).ok();
        // A refused file is tried again when it has changed.
        if self
            .seen
            .get(&path)
            .is_some_and(|seen| seen.modified == modified)
        {
            return;
        }
        let outcome = load(name, &path, settings, host);
        if let Err(Refusal::Load(text)) = &outcome
            && let Some(shortage) = shortage_of(&path, text)
        {
            // No fault of the file: it is tried again, whether it changes or not.
            self.shortage = Some(shortage);
            return;
        }
        match &outcome {
            Ok(plugin) => {
                log::info!(target: "plugin", "{name} {} from {}", plugin.version, path.display());
                self.order.push(plugin);
            }
            Err(refusal) => {
                log::warn!(target: "plugin", "{} refused: {refusal}", path.display());
            }
        }
        self.seen.insert(path, Seen { modified, outcome });
    }

    /// The plug-in of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&'static LoadedPlugin> {
        self.order
            .iter()
            .find(|plugin| plugin.name == name)
            .copied()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        self.order
            .iter()
            .map(|plugin| plugin.name.as_str())
            .collect()
    }
}

/// Where plug-ins are looked for, best place first.
pub(crate) fn directories(settings: &Settings) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = Vec::new();
    if !settings.secure {
        let given = settings.text("plugin_path");
        for directory in given.split(':').filter(|directory| !directory.is_empty()) {
            if directory.starts_with('/') {
                list.push(directory.into());
            } else {
                static ONCE: OnceCell<()> = OnceCell::new();
                ONCE.get_or_init(|| {
                    log::warn!(target: "plugin", "plugin_path: {directory} is not absolute, ignored");
                });
            }
        }
    }
    let major = format!("abi{VIPL_PLUGIN_ABI_MAJOR}");
    if let Some(own) = library_path().as_deref().and_then(Path::parent) {
        list.push(own.to_owned());
        list.push(own.join("vipl").join(&major));
    }
    list.push(Path::new("/usr/lib/vipl").join(&major));
    list.push(Path::new("/usr/local/lib/vipl").join(&major));
    let mut distinct = Vec::new();
    for directory in list {
        if !distinct.contains(&directory) {
            distinct.push(directory);
        }
    }
    distinct
}

/// The name of the plug-in in a file of this name, if there can be one.
fn name_of(file: &str) -> Option<&str> {
    file.strip_prefix("libvipl_")?.strip_suffix(".so")
}

/// The plug-in files of a directory, sorted by name.
fn candidates(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(directory)?
        .flatten()
        .filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            Some((name_of(&file)?.to_owned(), entry.path()))
        })
        .collect();
    found.sort();
    Ok(found)
}

/// Why a file could not be loaded, if that was for want of something. `dlopen` gives a text only, and
/// gives it in English as long as the program has set no other locale; so the file is tried as well.
fn shortage_of(path: &Path, text: &str) -> Option<String> {
    let error = match std::fs::File::open(path) {
        Ok(_) if text.contains("Cannot allocate memory") || text.contains("failed to map") => {
            io::Error::from_raw_os_error(libc::ENOMEM)
        }
        Ok(_) if text.contains("Too many open files") => io::Error::from_raw_os_error(libc::EMFILE),
        Ok(_) => return None,
        Err(error) => error,
    };
    is_shortage(&error).then(|| format!("{}: {error}", path.display()))
}

/// Whether the filter `a,b` or `^a,b` lets a name through.
fn wanted(filter: &str, name: &str) -> bool {
    let (exclude, list) = match filter.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, filter),
    };
    if list.is_empty() {
        return true;
    }
    list.split(',').any(|entry| entry.trim() == name) != exclude
}

fn load(
    name: &str,
    path: &Path,
    settings: &Settings,
    host: &'static vipl_host,
) -> Result<&'static LoadedPlugin, Refusal> {
    log::debug!(target: "plugin", "loading {}", path.display());
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: a plug-in has no constructors (rule of the plug-in interface).
    let library = unsafe { Library::open(Some(path), flags) };
    vipl_guard::install();
    let library = ManuallyDrop::new(library.map_err(|error| Refusal::Load(whole_story(&error)))?);
    // SAFETY: the symbol is data; it is only read after its magic was checked.
    let symbol = unsafe { library.get::<*const vipl_plugin>(b"vipl_plugin_v1\0") };
    let plugin = *symbol.map_err(|_| Refusal::NoSymbol)?;
    // SAFETY: every version of the structure begins with the magic and its size.
    let (magic, size) = unsafe { ((*plugin).magic, (*plugin).size) };
    expect("magic", VIPL_PLUGIN_MAGIC, magic)?;
    // SAFETY: as large as its size says.
    let plugin = &unsafe { description(plugin, size as usize) }?;
    expect(
        "abi_major",
        VIPL_PLUGIN_ABI_MAJOR.into(),
        plugin.abi_major.into(),
    )?;
    expect("fingerprint", VIPL_PLUGIN_FINGERPRINT, plugin.fingerprint)?;
    expect_size(
        "vipl_plugin.size",
        plugin,
        plugin.size as usize,
        size_of::<vipl_plugin>(),
    )?;
    expect("kind", VIPL_KIND_PROVIDER.into(), plugin.kind.into())?;
    if plugin.required & !FEATURES_KNOWN != 0 {
        return Err(Refusal::Features(plugin.required & !FEATURES_KNOWN));
    }
    let text = |text: *const c_char| {
        if text.is_null() {
            return None;
        }
        // SAFETY: the plug-in's constant string.
        let text = unsafe { CStr::from_ptr(text) };
        Some(text.to_string_lossy().into_owned())
    };
    let found = text(plugin.name).unwrap_or_default();
    if found != name {
        return Err(Refusal::Name {
            expected: name.to_owned(),
            found,
        });
    }
    // SAFETY: constant data of the plug-in, which is never closed.
    settings.declare(name, unsafe { crate::settings::of_plugin(plugin) }?);
    log::debug!(target: "plugin", "calling init of {}", path.display());
    let ops = {
        let line = format!(
            "vipl: a fault while the plug-in {} was in its init\n",
            path.display()
        );
        let _blame = vipl_guard::blame(&line);
        initialise(plugin, host)?
    };
    Ok(Box::leak(Box::new(LoadedPlugin {
        name: found,
        version: text(plugin.version).unwrap_or_default(),
        path: path.to_owned(),
        ops,
    })))
}

/// An error with its cause: only the cause says what the loader did not like.
fn whole_story(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn expect(field: &'static str, expected: u64, found: u64) -> Result<(), Refusal> {
    if expected == found {
        Ok(())
    } else {
        Err(Refusal::Mismatch {
            field,
            expected,
            found,
        })
    }
}

/// What a plug-in says of itself, as long as this library knows it; what an older plug-in does not have is 0.
///
/// # Safety
/// `plugin` points to `size` bytes.
unsafe fn description(plugin: *const vipl_plugin, size: usize) -> Result<vipl_plugin, Refusal> {
    // Every minor version has `init`, the last field of the first one.
    let least = std::mem::offset_of!(vipl_plugin, init) + size_of::<usize>();
    if size < least {
        expect("size", least as u64, size as u64)?;
    }
    // SAFETY: zero is a valid value of every field.
    let mut known: vipl_plugin = unsafe { std::mem::zeroed() };
    let bytes = size.min(size_of::<vipl_plugin>());
    // SAFETY: within both.
    unsafe {
        std::ptr::copy_nonoverlapping(plugin.cast::<u8>(), (&raw mut known).cast(), bytes);
    }
    Ok(known)
}

/// The size of a structure agrees with the minor version that the plug-in was compiled for: the same size for
/// the same version, not more for an older one, not less for a newer one.
fn expect_size(
    field: &'static str,
    plugin: &vipl_plugin,
    found: usize,
    ours: usize,
) -> Result<(), Refusal> {
    match plugin.abi_minor.cmp(&VIPL_PLUGIN_ABI_MINOR) {
        Ordering::Less if found <= ours => Ok(()),
        Ordering::Greater if found >= ours => Ok(()),
        Ordering::Equal if found == ours => Ok(()),
        _ => Err(Refusal::Size {
            field,
            minor: plugin.abi_minor,
            found,
            ours,
        }),
    }
}

/// Calls `init` and checks the table it fills.
fn initialise(plugin: &vipl_plugin, host: &'static vipl_host) -> Result<vipl_provider, Refusal> {
    let init = plugin.init.ok_or(Refusal::MissingOp("init"))?;
    // SAFETY: constant.
    unsafe { vipl_plugin_sdk::Host::adopt(host) };
    // SAFETY: absent operations are NULL, which is what zero is.
    let mut ops: vipl_provider = unsafe { std::mem::zeroed() };
    ops.size = size_of::<vipl_provider>();
    // SAFETY: both tables are valid; the plug-in writes no further than the size we gave.
    let status = unsafe { init(host, &raw mut ops) };
    if status != VIPL_OK {
        return Err(Refusal::Init(status));
    }
    let size = ops.size;
    expect_size(
        "vipl_provider.size",
        plugin,
        size,
        size_of::<vipl_provider>(),
    )?;
    forget_beyond(&mut ops);
    let needed = [
        ("nic_open", ops.nic_open.is_some()),
        ("attach", ops.attach.is_some()),
        ("detach", ops.detach.is_some()),
        ("post_send", ops.post_send.is_some()),
        ("progress", ops.progress.is_some()),
    ];
    if let Some((name, _)) = needed.iter().find(|(_, there)| !there) {
        return Err(Refusal::MissingOp(name));
    }
    // Sleeping needs all three.
    if ops.arm.is_none() || ops.sleep.is_none() || ops.wake.is_none() {
        (ops.arm, ops.sleep, ops.wake) = (None, None, None);
    }
    Ok(ops)
}

/// What lies behind the end of an older plug-in's table is absent, whatever is there.
fn forget_beyond(ops: &mut vipl_provider) {
    let size = ops.size.min(size_of::<vipl_provider>());
    // SAFETY: inside the table; absent operations are NULL, which is what zero is.
    unsafe {
        let table = std::ptr::from_mut(ops).cast::<u8>();
        table
            .add(size)
            .write_bytes(0, size_of::<vipl_provider>() - size);
    }
}

impl LoadedPlugin {
    /// What `nic_open` fills; everything unknown is zero.
    pub(crate) fn blank_info(&self) -> vipl_nic_info {
        vipl_nic_info {
            size: size_of::<vipl_nic_info>(),
            name: [0; 64],
            address: [0; VIPL_ADDRESS_MAX],
            address_len: 0,
            discriminator_max: 64,
            reliability_support: 0,
            rdma_read_support: 0,
            hardware_version: 1,
            provider_version: 1,
            register_bytes_max: 0,
            register_block_max: 0,
            regions_max: 4096,
            vis_max: 1024,
            descriptors_max: 1024,
            segments_max: 252,
            cqs_max: 1024,
            cq_entries_max: 65_536,
            ptags_max: 1024,
            native_mtu: 0,
            transfer_max: 0,
            segment_bytes: 4096,
            shared_fds: [-1; 2],
            regions: std::ptr::null_mut(),
            link: 0,
            data_address_len: 0,
            data_address: [0; VIPL_DATA_ADDRESS_MAX],
            poll_us: 0,
        }
    }

    /// Rank and argument, if the plug-in claims this device name.
    pub(crate) fn claim(&self, name: &str) -> Option<(i32, String)> {
        let Some(claim) = self.ops.claim else {
            let own = self.devices().iter().any(|device| device == name);
            return own.then(|| (CLAIM_RANK, String::new()));
        };
        let name = CString::new(name).ok()?;
        let mut argument = [0 as c_char; 64];
        // SAFETY: a string and 64 bytes of room.
        let rank = unsafe { claim(name.as_ptr(), argument.as_mut_ptr()) };
        (rank > 0).then(|| (rank, from_chars(&mut argument)))
    }

    /// Names of the devices that are present.
    pub(crate) fn devices(&self) -> Vec<String> {
        let Some(device) = self.ops.device else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for number in 0..64 {
            let mut name = [0 as c_char; 64];
            // SAFETY: 64 bytes of room.
            if unsafe { device(number, name.as_mut_ptr()) } != VIPL_OK {
                break;
            }
            names.push(from_chars(&mut name));
        }
        names
    }
}

fn from_chars(chars: &mut [c_char; 64]) -> String {
    chars[63] = 0;
    // SAFETY: NUL-terminated by the line above.
    unsafe { CStr::from_ptr(chars.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_admits_or_excludes() {
        assert!(wanted("", "loopback"));
        assert!(wanted("loopback, tulip", "tulip"));
        assert!(!wanted("loopback", "tulip"));
        assert!(!wanted("^tulip", "tulip"));
        assert!(wanted("^tulip", "loopback"));
    }
}

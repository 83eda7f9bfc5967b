//! One plug-in file: checked as data before any of its code runs, opened `RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE`,
//! initialised, and never closed.

use std::cmp::Ordering;
use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::Library;
use vipl_plugin_abi::*;
use vipl_sys::elf::{self, Unfit};

use super::loaded::LoadedPlugin;
use crate::settings::{BadDeclaration, Settings};

/// Feature bits of plug-ins that this library knows.
const FEATURES_KNOWN: u64 = 0;

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("cannot be loaded: {0}")]
    Load(String),
    #[error("is for {0}-bit programs, and this one has {bits} bits", bits = usize::BITS)]
    Class(u32),
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

/// Loads a plug-in from a file.
pub(super) fn load(
    name: &str,
    path: &Path,
    settings: &Settings,
    host: &'static vipl_host,
) -> Result<&'static LoadedPlugin, Refusal> {
    let plugin = open(name, path, VIPL_KIND_PROVIDER, settings)?;
    let ops = in_init(path, || initialise(&plugin, host))?;
    Ok(Box::leak(Box::new(LoadedPlugin {
        name: name.to_owned(),
        // SAFETY: the plug-in's constant string.
        version: unsafe { text(plugin.version) },
        path: path.to_owned(),
        ops,
    })))
}

/// Loads a layer from a file; returns its version and its table.
pub(super) fn load_layer(
    name: &str,
    path: &Path,
    settings: &Settings,
    host: &'static vipl_layer_host,
) -> Result<(String, vipl_layer), Refusal> {
    let plugin = open(name, path, VIPL_KIND_LAYER, settings)?;
    let ops = in_init(path, || initialise_layer(&plugin, host))?;
    // SAFETY: the plug-in's constant string.
    Ok((unsafe { text(plugin.version) }, ops))
}

/// Opens a file and checks its description, without running its code.
fn open(name: &str, path: &Path, kind: u32, settings: &Settings) -> Result<vipl_plugin, Refusal> {
    log::debug!(target: "plugin", "loading {}", path.display());
    elf::check(path).map_err(|unfit| match unfit {
        Unfit::Class(bits) => Refusal::Class(bits),
        unfit => Refusal::Load(unfit.to_string()),
    })?;
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
    // SAFETY: a plug-in has no constructors (rule of the plug-in interface).
    let library = unsafe { Library::open(Some(path), flags) };
    vipl_guard::install();
    let library = library.map_err(|error| Refusal::Load(whole_story(&error)))?;
    let library = ManuallyDrop::new(library);
    // SAFETY: the symbol is data; it is only read after its magic was checked.
    let symbol = unsafe { library.get::<*const vipl_plugin>(b"vipl_plugin_v1\0") };
    let plugin = *symbol.map_err(|_| Refusal::NoSymbol)?;
    // SAFETY: every version of the structure begins with the magic and its size.
    let (magic, size) = unsafe { ((*plugin).magic, (*plugin).size) };
    expect("magic", VIPL_PLUGIN_MAGIC, magic)?;
    // SAFETY: as large as its size says.
    let plugin = unsafe { description(plugin, size as usize) }?;
    expect(
        "abi_major",
        VIPL_PLUGIN_ABI_MAJOR.into(),
        plugin.abi_major.into(),
    )?;
    expect("fingerprint", VIPL_PLUGIN_FINGERPRINT, plugin.fingerprint)?;
    let size = plugin.size as usize;
    expect_size("vipl_plugin.size", &plugin, size, size_of::<vipl_plugin>())?;
    expect("kind", kind.into(), plugin.kind.into())?;
    if plugin.required & !FEATURES_KNOWN != 0 {
        return Err(Refusal::Features(plugin.required & !FEATURES_KNOWN));
    }
    // SAFETY: the plug-in's constant string.
    let found = unsafe { text(plugin.name) };
    if found != name {
        return Err(Refusal::Name {
            expected: name.to_owned(),
            found,
        });
    }
    // SAFETY: constant data of the plug-in, which is never closed.
    settings.declare(name, unsafe { crate::settings::of_plugin(&plugin) }?);
    Ok(plugin)
}

/// Runs the init of a plug-in. A fault there names the file.
fn in_init<T>(path: &Path, init: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    log::debug!(target: "plugin", "calling init of {}", path.display());
    let line = format!(
        "vipl: a fault while the plug-in {} was in its init\n",
        path.display()
    );
    vipl_guard::on_fault(&line, vipl_sys::stderr::write, init)
}

/// A plug-in's text; an empty one for NULL.
///
/// # Safety
/// NULL or NUL-terminated.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

/// An error with its cause, which contains the loader's reason.
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

/// A plug-in's description, limited to the fields known to this library; fields that an older plug-in lacks
/// are 0.
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

/// Checks the size of a structure against the minor version for which the plug-in was compiled: the same size
/// for the same version, not larger for an older one, not smaller for a newer one.
fn expect_size(
    field: &'static str,
    plugin: &vipl_plugin,
    found: usize,
    ours: usize,
) -> Result<(), Refusal> {
    if goes_with(plugin.abi_minor.cmp(&VIPL_PLUGIN_ABI_MINOR), found, ours) {
        return Ok(());
    }
    Err(Refusal::Size {
        field,
        minor: plugin.abi_minor,
        found,
        ours,
    })
}

/// Whether a structure of this size can belong to a minor version older or newer than ours, or equal.
fn goes_with(version: Ordering, found: usize, ours: usize) -> bool {
    match version {
        Ordering::Less => found <= ours,
        Ordering::Equal => found == ours,
        Ordering::Greater => found >= ours,
    }
}

/// Calls `init` and checks the table that it fills.
fn initialise(plugin: &vipl_plugin, host: &'static vipl_host) -> Result<vipl_provider, Refusal> {
    let init = plugin.init.ok_or(Refusal::MissingOp("init"))?;
    // SAFETY: constant.
    unsafe { vipl_rules::Host::adopt(host) };
    // SAFETY: absent operations are NULL, which is what zero is.
    let mut ops: vipl_provider = unsafe { std::mem::zeroed() };
    ops.size = size_of::<vipl_provider>();
    // SAFETY: both tables are valid; the plug-in writes no further than the given size.
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

/// The same for a layer. Every operation of a layer is optional.
fn initialise_layer(
    plugin: &vipl_plugin,
    host: &'static vipl_layer_host,
) -> Result<vipl_layer, Refusal> {
    let init = plugin.init_layer.ok_or(Refusal::MissingOp("init_layer"))?;
    let mut ops = vipl_layer {
        size: size_of::<vipl_layer>(),
        before: None,
        after: None,
        event: None,
        end: None,
    };
    // SAFETY: both tables are valid; the layer writes no further than the given size.
    let status = unsafe { init(host, &raw mut ops) };
    if status != VIPL_OK {
        return Err(Refusal::Init(status));
    }
    expect_size("vipl_layer.size", plugin, ops.size, size_of::<vipl_layer>())?;
    Ok(ops)
}

/// Operations after the end of an older plug-in's table are absent, whatever the memory holds.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn of_version(minor: u16) -> vipl_plugin {
        // SAFETY: zero is a valid value of every field.
        let mut plugin: vipl_plugin = unsafe { std::mem::zeroed() };
        plugin.abi_minor = minor;
        plugin
    }

    #[test]
    fn a_size_goes_with_its_minor_version() {
        for (version, good) in [
            (Ordering::Less, [true, true, false]),
            (Ordering::Equal, [false, true, false]),
            (Ordering::Greater, [false, true, true]),
        ] {
            assert_eq!([63, 64, 65].map(|size| goes_with(version, size, 64)), good);
        }
        let newer = of_version(VIPL_PLUGIN_ABI_MINOR + 1);
        assert!(expect_size("size", &newer, 65, 64).is_ok());
        assert!(expect_size("size", &newer, 63, 64).is_err());
    }

    #[test]
    fn a_short_description_ends_in_zeros() {
        let mut plugin = of_version(3);
        plugin.setting_count = 7;
        let least = std::mem::offset_of!(vipl_plugin, init) + size_of::<usize>();
        // SAFETY: the size is not above that of the structure.
        let known = unsafe { description(&raw const plugin, least) }.unwrap();
        assert_eq!((known.abi_minor, known.setting_count), (3, 0));
        // SAFETY: as above.
        assert!(unsafe { description(&raw const plugin, least - 1) }.is_err());
    }

    #[test]
    fn operations_behind_the_end_of_a_table_are_absent() {
        unsafe extern "C" fn operation(_vi: *mut vipl_vi) {}
        // SAFETY: absent operations are NULL, which is what zero is.
        let mut ops: vipl_provider = unsafe { std::mem::zeroed() };
        ops.post_send = Some(operation);
        ops.progress = Some(operation);
        ops.size = std::mem::offset_of!(vipl_provider, progress);
        forget_beyond(&mut ops);
        assert!(ops.post_send.is_some() && ops.progress.is_none());
    }
}

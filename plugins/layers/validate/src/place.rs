//! Places in the program: the address to which a call returns, and the line of the source that has it.

use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use vipl_plugin_sdk::layer::Call;

/// An address in the program, or 0 if it is not known.
pub(crate) type Place = usize;

/// Frames that are searched for the program's.
const FRAMES_MAX: usize = 48;

/// The place of a call, as the library gives it in calls of the data path; else it is searched for on the stack.
pub(crate) fn of(call: &Call<'_>) -> Place {
    match call.caller() {
        Some(address) if !is_ours(address) => address,
        _ => searched(call.name()),
    }
}

/// The place that costs nothing to know, if any.
pub(crate) fn given(call: &Call<'_>) -> Place {
    call.caller().unwrap_or(0)
}

/// The innermost frame of the stack that is neither this layer's nor the library's. The library may be a part of the program
/// (`libvipl.a`): then it is the frame that called the function of this name.
fn searched(function: &CStr) -> Place {
    let (mut found, mut frames) = (0, 0);
    backtrace::trace(|frame| {
        let ip = frame.ip().addr();
        frames += 1;
        if ip == 0 || frames > FRAMES_MAX {
            return false;
        }
        if is_ours(ip) {
            return true;
        }
        if symbol(ip - 1).is_some_and(|(name, _)| name == function.to_bytes()) {
            found = 0;
            return true;
        }
        if found == 0 {
            found = ip;
        }
        // A static library has its function among the next frames; a shared one was above.
        frames < 24 && object(ip).is_some_and(|path| !is_shared(&path))
    });
    found
}

fn is_shared(path: &[u8]) -> bool {
    path.windows(3).any(|part| part == b".so")
}

/// Whether an address is in the library or in a layer.
fn is_ours(address: usize) -> bool {
    object(address).is_some_and(|path| {
        let file = Path::new(std::ffi::OsStr::from_bytes(&path));
        let name = file.file_name().map_or(&b""[..], OsStrExt::as_bytes);
        name.starts_with(b"libvipl.so") || name.starts_with(b"libvipl_layer_")
    })
}

/// What the system's loader knows of an address.
fn loaded(address: usize) -> Option<libc::Dl_info> {
    // SAFETY: zero is a valid value of every field.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address; room for the answer.
    let known = unsafe { libc::dladdr(std::ptr::without_provenance(address), &raw mut info) };
    (known != 0).then_some(info)
}

/// The file that has an address.
fn object(address: usize) -> Option<Vec<u8>> {
    let info = loaded(address)?;
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's text.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(name.to_bytes().to_vec())
}

/// The exported symbol before an address, and the distance to it.
fn symbol(address: usize) -> Option<(Vec<u8>, usize)> {
    let info = loaded(address)?;
    if info.dli_sname.is_null() {
        return None;
    }
    // SAFETY: the loader's text.
    let name = unsafe { CStr::from_ptr(info.dli_sname) }
        .to_bytes()
        .to_vec();
    Some((name, address - info.dli_saddr.addr()))
}

/// A place for people: `main at hello.c:42`, or what to type if the program has no debug information.
pub(crate) fn shown(place: Place) -> String {
    if place == 0 {
        return "at an unknown place".to_owned();
    }
    // The call is before the address to which it returns.
    let address = place - 1;
    let (mut line, mut name) = (None, None);
    backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
        if line.is_none()
            && let (Some(file), Some(number)) = (symbol.filename(), symbol.lineno())
        {
            line = Some(format!("{}:{number}", file.display()));
            name = symbol.name().map(|name| format!("{name:#}"));
        }
        if name.is_none() {
            name = symbol.name().map(|name| format!("{name:#}"));
        }
    });
    match (line, name) {
        (Some(line), Some(name)) => format!("at {line} ({name})"),
        (Some(line), None) => format!("at {line}"),
        (None, name) => without_line(address, name),
    }
}

fn without_line(address: usize, name: Option<String>) -> String {
    let Some(info) = loaded(address) else {
        return format!("at {address:#x}");
    };
    let file = object(address).unwrap_or_default();
    let file = String::from_utf8_lossy(&file).into_owned();
    let offset = address - info.dli_fbase.addr();
    let name = name.map(|name| format!("{name}, ")).unwrap_or_default();
    format!("at {name}{file}+{offset:#x} (compile with -g, or: addr2line -fe {file} {offset:#x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[inline(never)]
    fn here() -> usize {
        let mut found = 0;
        backtrace::trace(|frame| {
            found = frame.ip().addr();
            symbol(found);
            false
        });
        found
    }

    #[test]
    fn places_have_a_file() {
        let shown = shown(here());
        assert!(shown.starts_with("at "), "{shown}");
        assert_eq!(super::shown(0), "at an unknown place");
    }
}

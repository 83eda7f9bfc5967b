//! The folders of plug-ins, and the files in them named `libvipl_NAME.so`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

use vipl_plugin_abi::VIPL_PLUGIN_ABI_MAJOR;

use crate::agent::library_path;
use crate::error::is_shortage;
use crate::settings::Settings;

/// Standard library folders for this processor: Debian, others. A program linked with `libvipl.a` is in
/// another folder.
const SYSTEM: &[&str] = &[
    #[cfg(target_arch = "x86_64")]
    "/usr/lib/x86_64-linux-gnu",
    #[cfg(target_arch = "x86")]
    "/usr/lib/i386-linux-gnu",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu",
    #[cfg(target_pointer_width = "64")]
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
];

/// Folders of plug-ins, in order of precedence.
pub(super) fn directories(settings: &Settings) -> Vec<PathBuf> {
    let mut list: Vec<PathBuf> = Vec::new();
    if !settings.secure {
        let given = settings.text("plugin_path");
        for directory in given.split(':').filter(|directory| !directory.is_empty()) {
            if directory.starts_with('/') {
                list.push(directory.into());
            } else {
                static ONCE: Once = Once::new();
                ONCE.call_once(|| {
                    log::warn!(target: "plugin", "plugin_path: {directory} is not absolute, ignored");
                });
            }
        }
    }
    let major = format!("abi{VIPL_PLUGIN_ABI_MAJOR}");
    if let Some(own) = library_path().as_deref().and_then(Path::parent) {
        // A system folder has thousands of files, which would be scanned at every VipOpenNic, and no plug-in.
        if !SYSTEM.iter().any(|system| Path::new(system) == own) {
            list.push(own.to_owned());
        }
        list.push(own.join("vipl").join(&major));
    }
    for folder in SYSTEM {
        list.push(Path::new(folder).join("vipl").join(&major));
    }
    let mut distinct = Vec::new();
    for directory in list {
        if !distinct.contains(&directory) {
            distinct.push(directory);
        }
    }
    distinct
}

/// The name of the plug-in in a file with this name, if it can be one. Layers are only loaded when they are asked for.
pub(super) fn name_of(file: &str) -> Option<&str> {
    let name = stem(file)?;
    (!name.starts_with(LAYER)).then_some(name)
}

/// What the name of a plug-in's file says, of any kind.
fn stem(file: &str) -> Option<&str> {
    file.strip_prefix("libvipl_")?.strip_suffix(".so")
}

/// What the name of a layer has before it in that of its file.
const LAYER: &str = "layer_";

/// The layers of a directory: none, if it cannot be read.
pub(super) fn layers(directory: &Path) -> Vec<(String, PathBuf)> {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let found = files.filter_map(|entry| {
        let file = entry.file_name().into_string().ok()?;
        let name = stem(&file)?.strip_prefix(LAYER)?;
        Some((name.to_owned(), entry.path()))
    });
    found.collect()
}

/// The first file of the folders that can have this layer.
pub(super) fn layer(settings: &Settings, name: &str) -> Option<PathBuf> {
    let file = format!("libvipl_layer_{name}.so");
    let mut files = directories(settings)
        .into_iter()
        .map(|folder| folder.join(&file));
    files.find(|path| path.exists())
}

/// The plug-in files of a directory, sorted by name.
pub(super) fn candidates(directory: &Path) -> io::Result<Vec<(String, PathBuf)>> {
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

/// The system loader's message if memory is exhausted.
const SHORT: [&str; 3] = ["Cannot allocate memory", "failed to map", "out of memory"];

/// The error if a file could not be loaded because the system lacks a resource. `dlopen` only returns a text,
/// in English unless the application has set another locale, so the file is opened as well.
pub(super) fn shortage_of(path: &Path, text: &str) -> Option<String> {
    let error = match vipl_sys::file::open(path) {
        Ok(_) if SHORT.iter().any(|words| text.contains(words)) => {
            io::Error::from_raw_os_error(libc::ENOMEM)
        }
        Ok(_) if text.contains("Too many open files") => io::Error::from_raw_os_error(libc::EMFILE),
        Ok(_) => return None,
        Err(error) => error,
    };
    is_shortage(&error).then(|| format!("{}: {error}", path.display()))
}

/// Whether the filter `a,b` or `^a,b` accepts a name.
pub(super) fn wanted(filter: &str, name: &str) -> bool {
    let (exclude, list) = match filter.strip_prefix('^') {
        Some(list) => (true, list),
        None => (false, filter),
    };
    if list.is_empty() {
        return true;
    }
    list.split(',').any(|entry| entry.trim() == name) != exclude
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_no_provider() {
        assert_eq!(name_of("libvipl_ip.so"), Some("ip"));
        assert_eq!(name_of("libvipl_layer_ip.so"), None);
    }

    #[test]
    fn the_filter_admits_or_excludes() {
        assert!(wanted("", "loopback"));
        assert!(wanted("loopback, tulip", "tulip"));
        assert!(!wanted("loopback", "tulip"));
        assert!(!wanted("^tulip", "tulip"));
        assert!(wanted("^tulip", "loopback"));
    }
}

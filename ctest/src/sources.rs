//! The sources of what is installed.

use std::path::{Path, PathBuf};

use crate::source;

/// Sources below these folders of the project by path, without tests.
pub fn product_sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    for folder in folders {
        collect(&source("..").join(folder), &mut sources);
    }
    sources
}

fn collect(folder: &Path, sources: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let other = [
            "tests",
            "tests.rs",
            "conformance",
            "target",
            "examples",
            "benches",
        ];
        if other.contains(&&*name) || name.ends_with("_tests.rs") {
            continue;
        }
        if path.is_dir() {
            collect(&path, sources);
        } else if name.ends_with(".rs") {
            let mut text = std::fs::read_to_string(&path).expect("a source");
            // Unit tests are at the end.
            if let Some(end) = text.find("#[cfg(test)]\nmod tests {") {
                text.truncate(end);
            }
            sources.push((path, text));
        }
    }
}

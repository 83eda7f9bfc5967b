//! What the machine is: printed once with every measurement, since no figure means anything without it.

#![forbid(unsafe_code)]

use serde_json::{Value, json};
use vipl_client::Library;

use crate::Result;

/// Opens the library: `VIPL_LIBRARY`, else beside the program, else in the `lib` folder beside the program's
/// folder, else where the system's loader looks.
///
/// # Errors
/// No candidate could be opened, or one was opened and is not a VIPL.
pub fn library() -> Result<&'static Library> {
    Ok(Library::open()?)
}

/// The CPU's model name.
#[must_use]
pub fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    model_of(&text).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn model_of(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The kernel's release.
#[must_use]
pub fn kernel() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// What the library reports about a topic, or None when it has no such extension or topic.
#[must_use]
pub fn describe(library: &Library, topic: &str) -> Option<Value> {
    serde_json::from_str(&library.describe(topic)?).ok()
}

/// The library's own version, if it reports one.
fn version(library: &Library) -> Option<String> {
    let version = describe(library, "version")?;
    Some(version.get("library")?.as_str()?.to_owned())
}

/// Machine and library, as an object.
#[must_use]
pub fn json(library: &Library) -> Value {
    json!({
        "cpu": cpu_model(),
        "kernel": kernel(),
        "library": library.path().display().to_string(),
        "version": version(library),
    })
}

/// Machine and library, in two lines that begin with `#`.
#[must_use]
pub fn lines(library: &Library) -> String {
    let version = version(library).unwrap_or_else(|| "of unknown version".to_owned());
    let path = library.path().display();
    format!(
        "# {}, Linux {}\n# libvipl {version}, {path}\n",
        cpu_model(),
        kernel()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_among_other_lines() {
        let text = "processor\t: 0\nmodel\t\t: 2\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(model_of(text).as_deref(), Some("Some CPU @ 2 GHz"));
        assert_eq!(model_of("processor: 0\n"), None);
    }
}

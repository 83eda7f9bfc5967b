//! What the machine is: printed once with every measurement, since no figure means anything without it.

#![forbid(unsafe_code)]

use serde_json::{Value, json};

use crate::vipl::Vipl;

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

/// Machine and library, as an object.
#[must_use]
pub fn json(vipl: &Vipl) -> Value {
    json!({
        "cpu": cpu_model(),
        "kernel": kernel(),
        "library": vipl.path().display().to_string(),
        "version": vipl.version(),
    })
}

/// Machine and library, in two lines that begin with `#`.
#[must_use]
pub fn lines(vipl: &Vipl) -> String {
    let version = vipl
        .version()
        .unwrap_or_else(|| "of unknown version".to_owned());
    let path = vipl.path().display();
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

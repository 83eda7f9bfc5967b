//! The floors of the tree: which folders a crate may import from. `cargo xtask modules` compares every Cargo.toml
//! with the table.
//!
//! ```text
//!   5  ctest                              tests of everything
//!   4  tools   mpi   examples             programs, over the C functions
//!   3  libvipl          plugins           the library; transports, which know the library by its tables only
//!   2        kagent, kagent/proto         the Kernel Agent, and the messages by which it is reached
//!   1              base                   what all of them share
//! ```

use std::path::Path;

use crate::Result;
use crate::workspace::{Workspace, root};

/// A folder, and the folders whose crates its crates may import. The longest folder that contains a crate counts, on
/// both sides. What tests need (dev-dependencies) may
/// come from `ctest` as well.
const ALLOWED: &[(&str, &[&str])] = &[
    ("base", &["base"]),
    ("kagent/proto", &["base"]),
    ("kagent", &["base", "kagent/proto"]),
    ("libvipl", &["base", "kagent/proto", "libvipl"]),
    ("libvipl/client", &["base"]),
    ("plugins/sdk", &["base"]),
    (
        "plugins",
        &["base", "kagent/proto", "plugins", "plugins/sdk"],
    ),
    ("tools", &["base", "libvipl/client", "tools"]),
    ("mpi", &["base", "libvipl/client"]),
    ("examples", &["base", "libvipl/client", "plugins/sdk"]),
];
/// The top floor imports from all others, and only from tests is it imported.
const TOP: &str = "ctest";

/// One dependency of a crate on another one of the workspace; the crates are given by their folders.
struct Arrow<'a> {
    from: &'a str,
    to: &'a str,
    for_tests: bool,
}

/// Prints each dependency that the table does not have. Returns how many there are.
pub(crate) fn check(workspace: &Workspace) -> Result<usize> {
    let root = root();
    let within = |path: &str| {
        let path = Path::new(path)
            .strip_prefix(&root)
            .unwrap_or(Path::new(path));
        path.to_string_lossy().into_owned()
    };
    let mut wrong = 0;
    for package in workspace.packages() {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        let from = within(manifest.trim_end_matches("/Cargo.toml"));
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(to) = dependency["path"].as_str().map(within) else {
                continue;
            };
            let for_tests = dependency["kind"] == "dev";
            let arrow = Arrow {
                from: &from,
                to: &to,
                for_tests,
            };
            if !arrow.is_allowed() {
                wrong += 1;
                println!(
                    "{from}/Cargo.toml: {} may not import from {}",
                    floor(&from),
                    floor(&to)
                );
            }
        }
    }
    Ok(wrong)
}

impl Arrow<'_> {
    fn is_allowed(&self) -> bool {
        let (from, to) = (floor(self.from), floor(self.to));
        // The tests of a crate may need a feature of its own.
        if from == TOP || self.for_tests && self.from == self.to {
            return true;
        }
        let allowed = |floor: &str| {
            ALLOWED
                .iter()
                .find(|(name, _)| *name == floor)
                .map(|(_, to)| *to)
        };
        allowed(from).is_some_and(|folders| folders.contains(&to)) || self.for_tests && to == TOP
    }
}

/// The longest folder of the table that contains a crate; the crate's own folder if there is none.
fn floor(folder: &str) -> &str {
    let names = ALLOWED.iter().map(|(name, _)| *name).chain([TOP]);
    names
        .filter(|name| Path::new(folder).starts_with(name))
        .max_by_key(|name| name.len())
        .unwrap_or(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(from: &str, to: &str) -> bool {
        Arrow {
            from,
            to,
            for_tests: false,
        }
        .is_allowed()
    }

    #[test]
    fn arrows_point_downwards() {
        assert!(allowed("plugins/clan/device", "plugins/wire"));
        assert!(allowed("plugins/clan/device", "kagent/proto"));
        assert!(allowed("kagent", "kagent/proto"));
        assert!(allowed("ctest/fuzz", "libvipl/core"));
        assert!(!allowed("base/sys", "kagent/proto"));
        assert!(!allowed("kagent/proto", "kagent"));
        assert!(!allowed("kagent", "plugins/wire"));
        assert!(!allowed("plugins/ip", "libvipl/core"));
        assert!(!allowed("libvipl/core", "plugins/loopback"));
        assert!(!allowed("libvipl/core", "plugins/sdk"));
        assert!(!allowed("tools", "ctest"));
        assert!(
            !allowed("elsewhere", "base/sys"),
            "a folder that the table does not have"
        );
    }

    #[test]
    fn tests_may_import_from_the_top() {
        let arrow = |from, to| {
            Arrow {
                from,
                to,
                for_tests: true,
            }
            .is_allowed()
        };
        assert!(arrow("tools", "ctest/netns"));
        assert!(!arrow("tools", "libvipl/core"));
    }
}

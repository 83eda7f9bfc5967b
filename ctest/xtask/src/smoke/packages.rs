//! What is installed belongs to packages: each file to one of Debian's and to one of RPM's, and each function to Debian's list
//! of symbols. Else building the packages, which takes minutes, would be the first to say so.

use std::fs;
use std::path::Path;

use crate::Result;
use crate::workspace::root;

/// Files that `packaging/debian/rules` takes away or moves.
const NOT_DEBIAN: [&str; 2] = [
    "/usr/share/doc/vipl/LICENSE-*",
    "/usr/etc/vipl/vipl.conf.sample",
];
/// The sample, whose place the macro `configuration` has.
const NOT_RPM: &str = "/usr/etc/vipl/vipl.conf.sample";

/// RPM's macros for folders.
const MACROS: [(&str, &str); 11] = [
    ("%{_prefix}", "/usr"),
    ("%{_bindir}", "/usr/bin"),
    ("%{_libdir}", "/usr/lib"),
    ("%{_includedir}", "/usr/include"),
    ("%{_datadir}", "/usr/share"),
    ("%{_mandir}", "/usr/share/man"),
    ("%{_unitdir}", "/usr/lib/systemd/system"),
    ("%{_sysusersdir}", "/usr/lib/sysusers.d"),
    ("%{_tmpfilesdir}", "/usr/lib/tmpfiles.d"),
    // The spec file moves them.
    ("%{python3_sitelib}", "/usr/lib/python3/dist-packages"),
    ("%doc ", ""),
];

/// Looks at all installed files, whose paths begin with the prefix.
pub(super) fn check<'a>(prefix: &Path, files: impl Iterator<Item = &'a Path>) -> Result {
    let prefix = prefix.to_str().ok_or("a prefix that is not UTF-8")?;
    let packaging = root().join("packaging");
    let (debian, rpm) = (debian(&packaging)?, rpm(&packaging)?);
    let mut count = 0;
    for file in files {
        let file = file.to_string_lossy().replace(prefix, "/usr");
        for (name, patterns) in [("debian/*.install", &debian), ("vipl.spec", &rpm)] {
            if !patterns.iter().any(|pattern| covers(pattern, &file)) {
                return Err(format!("packaging/{name} has no line for {file}").into());
            }
        }
        count += 1;
    }
    let symbols = fs::read_to_string(packaging.join("debian/libvipl1.symbols"))?;
    for name in fs::read_to_string(root().join("headers/abi/symbols.txt"))?.lines() {
        if !symbols.contains(&format!(" {name}@Base ")) {
            return Err(format!("packaging/debian/libvipl1.symbols lacks {name}").into());
        }
    }
    println!("packages: {count} files, each in one of Debian's and of RPM's");
    Ok(())
}

/// The patterns of all Debian packages.
fn debian(packaging: &Path) -> Result<Vec<String>> {
    let mut patterns: Vec<String> = NOT_DEBIAN.map(str::to_owned).into();
    for found in fs::read_dir(packaging.join("debian"))? {
        let path = found?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "install")
        {
            let text = fs::read_to_string(path)?;
            let sources = text
                .lines()
                .filter_map(|line| line.split_whitespace().next());
            // The folder of a processor, which this installation has not.
            patterns.extend(sources.map(|source| format!("/{}", source.replace("lib/*/", "lib/"))));
        }
    }
    Ok(patterns)
}

/// The patterns of all RPM packages.
fn rpm(packaging: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(packaging.join("vipl.spec"))?;
    let (_, lists) = text
        .split_once("\n%files")
        .ok_or("vipl.spec has no %files")?;
    let lines = lists.lines().filter(|line| !line.starts_with("%files"));
    let patterns = lines.map(|line| {
        let line = line.replace("%license ", "");
        let fill = |line: String, (from, to): (&str, &str)| line.replace(from, to);
        MACROS.into_iter().fold(line, fill)
    });
    Ok(patterns.chain([NOT_RPM.to_owned()]).collect())
}

/// Whether the pattern is that of this file or of a folder that it is in.
fn covers(pattern: &str, file: &str) -> bool {
    let mut folders = Path::new(file).ancestors().filter_map(Path::to_str);
    folders.any(|path| matches(pattern.as_bytes(), path.as_bytes()))
}

/// `*` stands for all but slashes.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([b'*', rest @ ..], _) => {
            matches(rest, text)
                || matches!(text, [other, text @ ..] if *other != b'/' && matches(pattern, text))
        }
        ([one, pattern @ ..], [other, text @ ..]) => one == other && matches(pattern, text),
        (pattern, text) => pattern.is_empty() && text.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_what_it_names_and_what_is_below() {
        assert!(covers(
            "/usr/share/doc/vipl/*.md",
            "/usr/share/doc/vipl/A.md"
        ));
        assert!(covers("/usr/lib/vipl", "/usr/lib/vipl/a/b.so"));
        assert!(covers(
            "/usr/share/man/man1/vip_*",
            "/usr/share/man/man1/vip_perf.1"
        ));
        assert!(!covers(
            "/usr/share/doc/vipl/*.md",
            "/usr/share/doc/vipl/a.sh"
        ));
        assert!(!covers("/usr/bin/vip_*", "/usr/bin/vipinfo"));
        assert!(!covers("/usr/*.md", "/usr/share/A.md"));
    }
}

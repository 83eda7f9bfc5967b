//! Installed pages: some are in other folders than in the source, and some of what they link to is not installed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::markdown::{Fate, is_file, normal, relinked, way};

use super::entries::{Entry, Source};

/// Changes the links of all pages to where things are installed. Where a link leads to nothing that is, its text stays.
pub(super) fn settle(root: &Path, entries: &mut [Entry]) -> Result {
    let of_source = |entry: &Entry| match &entry.source {
        Source::File(file) => file.strip_prefix(root).ok().map(Path::to_owned),
        _ => None,
    };
    let places: BTreeMap<PathBuf, PathBuf> = entries
        .iter()
        .filter_map(|entry| Some((of_source(entry)?, entry.path.clone())))
        .collect();
    for entry in entries.iter_mut() {
        let Some(page) = of_source(entry).filter(|path| is_page(path)) else {
            continue;
        };
        let text = fs::read_to_string(root.join(&page))?;
        let text = relinked(&text, |link, _| fate(&places, &page, &entry.path, link));
        entry.source = Source::Text(text);
    }
    Ok(())
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "md")
}

/// What becomes of a link of a page of the source, which is installed at `here`.
fn fate(places: &BTreeMap<PathBuf, PathBuf>, page: &Path, here: &Path, link: &str) -> Fate {
    if !is_file(link) {
        return Fate::Stays;
    }
    let (path, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
    let parent = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let to = normal(&parent(page).join(path));
    let to_folder = |folder: &Path| {
        // A folder is where its first file is, if that has the same path below it.
        let (file, place) = places.iter().find(|(file, _)| file.starts_with(folder))?;
        let below = file.strip_prefix(folder).ok()?;
        let depth = below.components().count();
        place
            .ends_with(below)
            .then(|| place.ancestors().nth(depth).map(Path::to_owned))?
    };
    match places.get(&to).cloned().or_else(|| to_folder(&to)) {
        Some(place) => Fate::Becomes(format!("{}{anchor}", way(&parent(here), &place).display())),
        None => Fate::Goes,
    }
}

/// Checks that all links of the pages below a folder lead to something there; how many there are.
pub(crate) fn check(folder: &Path) -> Result<usize> {
    let (mut folders, mut wrong, mut count) = (vec![folder.to_owned()], Vec::new(), 0);
    while let Some(inside) = folders.pop() {
        for found in fs::read_dir(&inside)? {
            let path = found?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if !is_page(&path) {
                continue;
            }
            relinked(&fs::read_to_string(&path)?, |link, written| {
                let file = link.split('#').next().unwrap_or_default();
                if is_file(link) {
                    count += 1;
                    let to = normal(&inside.join(file));
                    if !(to.starts_with(folder) && to.exists()) {
                        wrong.push(format!("{}: {written} leads nowhere", path.display()));
                    }
                }
                Fate::Stays
            });
        }
    }
    match wrong.is_empty() {
        true => Ok(count),
        false => Err(wrong.join("\n").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_what_is_installed() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let page = "[x](../examples/x.c) [e](../examples) [d](decisions/1.md) [p](../plugins/P.md#q) [h](#h)";
        write("docs/A.md", page);
        let files = [
            ("docs/A.md", "doc/A.md"),
            ("plugins/P.md", "doc/P.md"),
            ("examples/x.c", "doc/examples/x.c"),
        ];
        for (file, _) in &files[1..] {
            write(file, "");
        }
        let entry = |(from, to): &(&str, &str)| Entry {
            source: Source::File(root.path().join(from)),
            path: Path::new("/usr").join(to),
            mode: 0o644,
        };
        let mut entries: Vec<Entry> = files.iter().map(entry).collect();
        settle(root.path(), &mut entries).unwrap();
        let Source::Text(text) = &entries[0].source else {
            panic!("no text");
        };
        assert_eq!(
            text,
            "[x](examples/x.c) [e](examples) d [p](P.md#q) [h](#h)"
        );
        write("doc/A.md", text);
        let error = check(&root.path().join("doc")).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 3, "{error}");
        write("doc/P.md", "");
        write("doc/examples/x.c", "");
        assert_eq!(check(&root.path().join("doc")).unwrap(), 3);
    }
}

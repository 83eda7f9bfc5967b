//! Which pages the book has, and in which order: `SUMMARY.md`.
//!
//! It is mdBook's, with one addition: a link to a folder stands for the folder's `README.md` and, below it, all other pages
//! there: those with a number in front, then the others in the order in which that page links to them. A folder without such a page gets one that lists the pages, and
//! a folder that does not exist is left out.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::markdown::normal;

/// One page of the book.
pub(super) struct Page {
    /// From the top of the repository.
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// The book's contents.
pub(super) struct Summary {
    pub(super) pages: Vec<Page>,
    /// SUMMARY.md with paths from the top of the repository.
    pub(super) text: String,
}

impl Summary {
    /// Reads `SUMMARY.md` in a folder of a repository, and all pages that it names.
    pub(super) fn read(root: &Path, folder: &Path) -> Result<Summary> {
        let path = folder.join("SUMMARY.md");
        let written = fs::read_to_string(root.join(&path))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut summary = Summary {
            pages: Vec::new(),
            text: String::new(),
        };
        let mut part = None;
        for line in written.lines() {
            if line.starts_with("# ") {
                // The name of a part whose folders do not exist is left out with them.
                part = Some(line);
                continue;
            }
            let Some((before, link)) = line.split_once("](") else {
                continue;
            };
            let (indent, title) = before
                .split_once('[')
                .ok_or_else(|| format!("{}: {line}", path.display()))?;
            let target = link.trim_end().trim_end_matches(')');
            let to = normal(&folder.join(target));
            if target.ends_with('/') && !root.join(&to).is_dir() {
                continue;
            }
            if let Some(part) = part.take() {
                summary.text += &format!("\n{part}\n\n");
            }
            if target.ends_with('/') {
                summary.folder(root, indent, title, &to)?;
            } else {
                let text = read(root, &to)?;
                summary.add(indent, title, to, text);
            }
        }
        summary.complete(root)?;
        Ok(summary)
    }

    fn add(&mut self, indent: &str, title: &str, path: PathBuf, text: String) {
        self.text += &format!("{indent}[{title}]({})\n", in_book(&path).display());
        self.pages.push(Page { path, text });
    }

    /// A folder's own page, and all others below it.
    fn folder(&mut self, root: &Path, indent: &str, title: &str, folder: &Path) -> Result {
        let index = folder.join("README.md");
        let mut others = pages_of(root, folder)?;
        others.retain(|path| *path != index);
        let listed = if root.join(&index).exists() {
            read(root, &index)?
        } else {
            list(root, title, &others)?
        };
        let place = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let linked = listed.find(&format!("({name}")).unwrap_or(usize::MAX);
            (number(&name).unwrap_or(u32::MAX), linked)
        };
        others.sort_by_key(|path| (place(path), path.clone()));
        self.add(indent, title, index, listed);
        for path in others {
            let text = read(root, &path)?;
            let title = title_of(&path, &text);
            let text = if text.starts_with("# ") {
                text
            } else {
                format!("# {title}\n\n{text}")
            };
            self.add(&format!("  {indent}"), &title, path, text);
        }
        Ok(())
    }

    /// Each page of docs/ is in the book.
    fn complete(&self, root: &Path) -> Result {
        let forgotten = pages_of(root, Path::new("docs"))?
            .into_iter()
            .find(|path| self.pages.iter().all(|page| page.path != *path));
        match forgotten {
            Some(path) => Err(format!("SUMMARY.md does not name {}", path.display()).into()),
            None => Ok(()),
        }
    }
}

/// The pages of a folder, sorted.
fn pages_of(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for found in fs::read_dir(root.join(folder))? {
        let path = found?.path();
        if path.extension().is_some_and(|kind| kind == "md") {
            pages.push(folder.join(path.file_name().unwrap_or_default()));
        }
    }
    pages.sort();
    Ok(pages)
}

fn read(root: &Path, path: &Path) -> Result<String> {
    let text = fs::read_to_string(root.join(path));
    text.map_err(|error| format!("SUMMARY.md names {}: {error}", path.display()).into())
}

/// A page that lists others.
fn list(root: &Path, title: &str, pages: &[PathBuf]) -> Result<String> {
    let mut text = format!("# {title}\n\n");
    for path in pages {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("- [{}]({name})\n", title_of(path, &read(root, path)?));
    }
    Ok(text)
}

/// What a page is called: its first heading, with the number that is in its name; `vipl.7.md` is the manual page vipl(7).
fn title_of(path: &Path, text: &str) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let Some(heading) = text.lines().find_map(|line| line.strip_prefix("# ")) else {
        return match stem.rsplit_once('.') {
            Some((name, section)) => format!("{name}({section})"),
            None => stem.into_owned(),
        };
    };
    let mut words = heading.split(|c: char| !c.is_alphanumeric());
    match number(&stem) {
        Some(number) if words.all(|word| word != number.to_string()) => {
            format!("{number}. {heading}")
        }
        _ => heading.to_owned(),
    }
}

/// The number at the beginning of a file's name.
fn number(name: &str) -> Option<u32> {
    let end = name.find(|c: char| !c.is_ascii_digit());
    name[..end.unwrap_or(name.len())].parse().ok()
}

/// The path of a page in the book: mdBook, unlike GitHub, has index pages.
pub(super) fn in_book(path: &Path) -> PathBuf {
    if path.ends_with("README.md") {
        path.with_file_name("index.md")
    } else {
        path.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_is_its_pages_and_one_that_is_not_there_is_left_out() {
        let files = [
            ("README.md", "# Top\n"),
            ("docs/A.md", "# A\n"),
            ("docs/decisions/0002-b.md", "# 2. Second\n"),
            ("docs/decisions/0001-a.md", "# 16384 VIs\n"),
            (
                "docs/course/README.md",
                "# Course\n[one](z.md) [two](a.md) [10](10-c.md)\n",
            ),
            ("docs/course/10-c.md", "# 10. C\n"),
            ("docs/course/9-b.md", "# B\n"),
            ("docs/course/a.md", "# Later\n"),
            ("docs/course/z.md", "# Sooner\n"),
            ("docs/man/vipl.7.md", "## Name\n"),
            (
                "docs/book/SUMMARY.md",
                "# Summary\n[Top](../../README.md)\n# One\n- [A](../A.md)\n# Two\n- [None](../none/)\n\
                 # Three\n- [Course](../course/)\n- [Decisions](../decisions/)\n- [Man](../man/)\n",
            ),
        ];
        let folder = repository(&files);
        let summary = Summary::read(folder.path(), Path::new("docs/book")).unwrap();
        let expected = "\n# Summary\n\n[Top](index.md)\n\n# One\n\n- [A](docs/A.md)\n\n# Three\n\n\
            - [Course](docs/course/index.md)\n  - [9. B](docs/course/9-b.md)\n  - [10. C](docs/course/10-c.md)\n  - [Sooner](docs/course/z.md)\n  - [Later](docs/course/a.md)\n\
            - [Decisions](docs/decisions/index.md)\n  - [1. 16384 VIs](docs/decisions/0001-a.md)\n  \
            - [2. Second](docs/decisions/0002-b.md)\n- [Man](docs/man/index.md)\n  - [vipl(7)](docs/man/vipl.7.md)\n";
        assert_eq!(summary.text, expected);
        let text = |path: &str| {
            let mut pages = summary.pages.iter();
            let page = pages.find(|page| page.path == Path::new(path)).unwrap();
            page.text.clone()
        };
        assert_eq!(
            text("docs/decisions/README.md"),
            "# Decisions\n\n- [1. 16384 VIs](0001-a.md)\n- [2. Second](0002-b.md)\n"
        );
        assert_eq!(text("docs/man/vipl.7.md"), "# vipl(7)\n\n## Name\n");
    }

    #[test]
    fn pages_are_neither_forgotten_nor_invented() {
        let read = |summary: &str| {
            let folder = repository(&[("docs/A.md", "# A\n"), ("docs/book/SUMMARY.md", summary)]);
            match Summary::read(folder.path(), Path::new("docs/book")) {
                Ok(_) => panic!("{summary}"),
                Err(error) => error.to_string(),
            }
        };
        assert_eq!(read("# Summary\n"), "SUMMARY.md does not name docs/A.md");
        let error = read("- [A](../A.md)\n- [B](../B.md)\n");
        assert!(error.starts_with("SUMMARY.md names docs/B.md: "), "{error}");
    }
}

//! Puts the pages where mdBook finds them, with what they link to.

use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::markdown::{Fate, normal, relinked};

use super::FOLDER;
use super::summary::{Page, Summary, in_book};

/// Fills a folder for mdBook. Fails with all links that lead nowhere.
pub(super) fn stage(root: &Path, summary: &Summary, folder: &Path) -> Result {
    let source = folder.join("src");
    let mut wrong = Vec::new();
    for page in &summary.pages {
        let mut files = Vec::new();
        match rewritten(root, summary, page, &mut files) {
            Ok(text) => write(&source.join(in_book(&page.path)), text.as_bytes())?,
            Err(error) => wrong.extend(error),
        }
        for file in files {
            write(&source.join(&file), &fs::read(root.join(&file))?)?;
        }
    }
    if !wrong.is_empty() {
        return Err(wrong.join("\n").into());
    }
    write(&source.join("SUMMARY.md"), summary.text.as_bytes())?;
    for name in ["book.toml", "book.css"] {
        write(&folder.join(name), &fs::read(root.join(FOLDER).join(name))?)?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result {
    fs::create_dir_all(path.parent().ok_or("a path without a folder")?)?;
    fs::write(path, bytes)?;
    Ok(())
}

/// The text of a page with the links of the book; the files that it links to are added to `files`.
fn rewritten(
    root: &Path,
    summary: &Summary,
    page: &Page,
    files: &mut Vec<PathBuf>,
) -> std::result::Result<String, Vec<String>> {
    let mut wrong = Vec::new();
    let text = relinked(&page.text, |link, written| {
        fate(root, summary, page, link, files).unwrap_or_else(|why| {
            wrong.push(format!("{}: {written}: {why}", page.path.display()));
            Fate::Stays
        })
    });
    match wrong.is_empty() {
        true => Ok(text),
        false => Err(wrong),
    }
}

fn fate(
    root: &Path,
    summary: &Summary,
    page: &Page,
    link: &str,
    files: &mut Vec<PathBuf>,
) -> std::result::Result<Fate, &'static str> {
    let (path, anchor) = link.split_at(link.find('#').unwrap_or(link.len()));
    if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
        return Ok(Fate::Stays);
    }
    let folder = page.path.parent().unwrap_or(Path::new(""));
    let to = normal(&folder.join(path));
    let is_page = |path: &Path| summary.pages.iter().any(|page| page.path == path);
    if is_page(&to) {
        let known = in_book(Path::new(path));
        return Ok(Fate::Becomes(format!("{}{anchor}", known.display())));
    }
    let there = root.join(&to);
    if there.is_dir() {
        return Ok(if is_page(&to.join("README.md")) {
            Fate::Becomes(format!("{}/index.md", path.trim_end_matches('/')))
        } else {
            Fate::Goes
        });
    }
    if !there.is_file() {
        return Err("there is no such file");
    }
    if to.extension().is_some_and(|kind| kind == "md") {
        return Err("SUMMARY.md does not name this page");
    }
    files.push(to);
    Ok(Fate::Stays)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(text: &str) -> Summary {
        let page = |path: &str, text: &str| Page {
            path: path.into(),
            text: text.to_owned(),
        };
        Summary {
            pages: vec![page("docs/A.md", text), page("docs/b/README.md", "# B\n")],
            text: "# Summary\n".to_owned(),
        }
    }

    #[test]
    fn links_lead_to_pages_and_files_and_not_to_folders_of_the_source() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("book");
        for (path, text) in [
            ("docs/b/README.md", ""),
            ("src/x.c", "int x;"),
            ("docs/book/book.toml", ""),
            ("docs/book/book.css", ""),
        ] {
            write(&root.path().join(path), text.as_bytes()).unwrap();
        }
        let text = "| a |\n|---|\n| [b](b) [r](b/README.md#p) [`x`](../src/x.c#L1) [s](../src) [w](https://a.b/c) [h](#h) |\n";
        stage(root.path(), &summary(text), &folder).unwrap();
        let staged = fs::read_to_string(folder.join("src/docs/A.md")).unwrap();
        assert_eq!(
            staged,
            "| a |\n|---|\n| [b](b/index.md) [r](b/index.md#p) [`x`](../src/x.c#L1) s [w](https://a.b/c) [h](#h) |\n"
        );
        let copied = fs::read_to_string(folder.join("src/src/x.c")).unwrap();
        assert_eq!(copied, "int x;");
    }

    #[test]
    fn a_broken_link_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        write(&root.path().join("docs/C.md"), b"").unwrap();
        let text = "[gone](gone.c) and [c](C.md)\n";
        let error = stage(root.path(), &summary(text), &root.path().join("book")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "docs/A.md: [gone](gone.c): there is no such file\n\
             docs/A.md: [c](C.md): SUMMARY.md does not name this page"
        );
    }
}

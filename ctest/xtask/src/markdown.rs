//! Links of pages in Markdown.

use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag};

/// What becomes of a link.
pub(crate) enum Fate {
    Stays,
    /// A page that has another name or place.
    Becomes(String),
    /// There is nothing that it could lead to: its text stays.
    Goes,
}

/// A page with other links. `fate` is given where a link leads, and the whole of it.
pub(crate) fn relinked(page: &str, mut fate: impl FnMut(&str, &str) -> Fate) -> String {
    let mut edits: Vec<(Range<usize>, String)> = Vec::new();
    let parser = Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter();
    for (event, range) in parser {
        let (Event::Start(Tag::Link {
            link_type: LinkType::Inline,
            dest_url,
            ..
        })
        | Event::Start(Tag::Image {
            link_type: LinkType::Inline,
            dest_url,
            ..
        })) = event
        else {
            continue;
        };
        let written = &page[range.clone()];
        let Some(middle) = written.rfind("](") else {
            continue;
        };
        match fate(&dest_url, written) {
            Fate::Stays => {}
            Fate::Becomes(to) => {
                let at = range.start + middle + 2;
                edits.push((at..range.end - 1, to));
            }
            Fate::Goes => {
                let from = written.find('[').map_or(1, |at| at + 1);
                edits.push((range, written[from..middle].to_owned()));
            }
        }
    }
    let mut text = page.to_owned();
    for (range, new) in edits.into_iter().rev() {
        text.replace_range(range, &new);
    }
    text
}

/// Whether a link leads to a file beside the page, not to another site or place of the page.
pub(crate) fn is_file(link: &str) -> bool {
    !(link.is_empty()
        || link.starts_with('#')
        || link.contains("://")
        || link.starts_with("mailto:"))
}

/// A path without `.` and `..`.
pub(crate) fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            part => normal.push(part),
        }
    }
    normal
}

/// The way from a folder to a file; both are below the same one.
pub(crate) fn way(folder: &Path, to: &Path) -> PathBuf {
    let common = folder
        .components()
        .zip(to.components())
        .take_while(|(one, other)| one == other)
        .count();
    let up = folder
        .components()
        .skip(common)
        .map(|_| Component::ParentDir);
    up.chain(to.components().skip(common)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_change_or_go() {
        let page = "[a](x.md#p) ![b](y.svg) [`c`](z) [d](https://e.f)\n";
        let text = relinked(page, |link, _| match link {
            "x.md#p" => Fate::Becomes("../x.md#p".to_owned()),
            "y.svg" | "z" => Fate::Goes,
            _ => Fate::Stays,
        });
        assert_eq!(text, "[a](../x.md#p) b `c` [d](https://e.f)\n");
    }

    #[test]
    fn ways_lead_up_and_down() {
        let way = |folder: &str, to: &str| way(Path::new(folder), Path::new(to));
        assert_eq!(way("a/b", "a/c/d"), Path::new("../c/d"));
        assert_eq!(way("a", "a/d"), Path::new("d"));
        assert_eq!(normal(Path::new("a/../b/./c")), Path::new("b/c"));
    }
}

//! Checks the links of the built book: each file and each anchor exists. Other sites are not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::markdown::normal;

/// What a page of the book has.
#[derive(Default)]
struct Html {
    anchors: BTreeSet<String>,
    links: BTreeSet<String>,
}

/// How many links there are; fails with those that lead nowhere.
pub(super) fn check(folder: &Path) -> Result<usize> {
    let mut pages = BTreeMap::new();
    collect(folder, &mut pages)?;
    let (mut count, mut wrong) = (0, Vec::new());
    for (path, page) in &pages {
        for link in &page.links {
            if link.contains(':') || link.starts_with("//") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = file.split('?').next().unwrap_or_default();
            let here = path.parent().unwrap_or(folder);
            let to = if file.is_empty() {
                path.clone()
            } else {
                normal(&here.join(file))
            };
            let is_there = match pages.get(&to) {
                Some(page) => anchor.is_empty() || page.anchors.contains(anchor),
                None => to.exists() && to.starts_with(folder),
            };
            if !is_there {
                let name = path.strip_prefix(folder).unwrap_or(path);
                wrong.push(format!("{}: {link} leads nowhere", name.display()));
            }
        }
    }
    match wrong.len() {
        0 => Ok(count),
        _ => Err(wrong.join("\n").into()),
    }
}

fn collect(folder: &Path, pages: &mut BTreeMap<PathBuf, Html>) -> Result {
    for found in fs::read_dir(folder)? {
        let path = found?.path();
        if path.is_dir() {
            collect(&path, pages)?;
        } else if path.extension().is_some_and(|kind| kind == "html") {
            let page = Html::of(&fs::read_to_string(&path)?);
            pages.insert(path, page);
        }
    }
    Ok(())
}

impl Html {
    /// mdBook quotes all attributes by `"`, and escapes that and `<` in their values.
    fn of(text: &str) -> Html {
        let mut html = Html::default();
        let without_scripts = text.split("<script").enumerate().map(|(number, part)| {
            // What stands in a script is no element, but its own attributes count.
            let (script, rest) = part.split_once("</script>").unwrap_or(("", part));
            let head = script.split('>').next().unwrap_or_default();
            if number == 0 {
                ("", part)
            } else {
                (head, rest)
            }
        });
        for (head, rest) in without_scripts {
            let tags = rest.split('<').skip(1).map(|tag| {
                let end = tag.find('>').unwrap_or(tag.len());
                &tag[..end]
            });
            for tag in tags.chain([head]) {
                html.anchors.extend(attribute(tag, "id"));
                html.links.extend(attribute(tag, "href"));
                html.links.extend(attribute(tag, "src"));
            }
        }
        html
    }
}

/// The value of an attribute of a tag.
fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    let (value, _) = value.split_once('"')?;
    Some(value.replace("&amp;", "&").replace("%20", " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_its_file_or_anchor_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        write("a.js", "");
        write(
            "index.html",
            "<script src=\"a.js\">var x = '<a href=\"no.html\">'</script><h1 id=\"top\"><a class=\"x\" href=\"#top\">T</a></h1>\
             <a href=\"sub/b.html#part\">b</a><a href=\"https://a.b/\">c</a>",
        );
        write(
            "sub/b.html",
            "<h2 id=\"part\">B</h2><a href=\"../index.html\">up</a>",
        );
        assert_eq!(check(folder.path()).unwrap(), 4);
        write(
            "sub/b.html",
            "<h2 id=\"other\">B</h2><a href=\"../../index.html\">up</a><img src=\"x.svg\">",
        );
        let error = check(folder.path()).unwrap_err().to_string();
        let expected = [
            "index.html: sub/b.html#part leads nowhere",
            "sub/b.html: ../../index.html leads nowhere",
            "sub/b.html: x.svg leads nowhere",
        ];
        assert_eq!(error.lines().collect::<Vec<_>>(), expected);
    }
}

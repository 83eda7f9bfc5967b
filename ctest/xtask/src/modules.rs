//! `cargo xtask modules`: crates import downwards ([`floors`]), and the modules of each crate import each other without
//! circles.
//!
//! A module depends on another one of its crate when it names it by a path that begins with `crate::` or
//! `super::`; a parent and the children that it declares may name each other. The check reads the sources
//! without the compiler, and leaves out comments and the `mod tests` at the end of a file.
//!
//! `ctest/xtask/circles.txt` lists the circles that pass. It is what the command prints without `--check`,
//! and should only ever get shorter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::Args;

use crate::Result;
use crate::floors;
use crate::workspace::{Workspace, root};

/// Circles that pass, in the form in which this command prints them: folder of the crate, modules.
const ALLOWED: &str = include_str!("../circles.txt");

/// Arguments of `cargo xtask modules`.
#[derive(Args)]
pub(crate) struct Options {
    /// Fail when there is a circle that is not allowed
    #[arg(long)]
    check: bool,
}

/// What each module of a crate imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Prints every circle; with `check` one that is not allowed fails.
pub(crate) fn run(options: &Options) -> Result {
    let allowed = allowed(ALLOWED);
    let (mut wrong, mut count) = (0, 0);
    let workspace = Workspace::load()?;
    let arrows = floors::check(&workspace)?;
    for folder in workspace.folders() {
        let name = folder.strip_prefix(root()).unwrap_or(&folder);
        let name = name.to_string_lossy();
        let mut sources = BTreeMap::new();
        read(&folder.join("src"), "", &mut sources)?;
        count += sources.len();
        for circle in circles(&imports(&sources)) {
            if !options.check {
                println!("{name}: {}", circle.join(", "));
            } else if !is_allowed(&allowed, &name, &circle) {
                wrong += 1;
                println!("{name}: a circle of {}", circle.join(", "));
            }
        }
    }
    if wrong > 0 {
        return Err(format!("{wrong} import circles that are not allowed").into());
    }
    if options.check && arrows > 0 {
        return Err(format!("{arrows} dependencies that no floor allows").into());
    }
    if options.check {
        println!("{count} modules, {} circles at most", allowed.len());
    }
    Ok(())
}

/// Folder and modules of each line.
fn allowed(text: &str) -> Vec<(&str, Vec<&str>)> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .map(|(folder, modules)| (folder, modules.split(", ").collect()))
        .collect()
}

/// All its modules are among those of an allowed circle.
fn is_allowed(allowed: &[(&str, Vec<&str>)], folder: &str, circle: &[String]) -> bool {
    allowed.iter().any(|(name, modules)| {
        *name == folder && circle.iter().all(|one| modules.contains(&one.as_str()))
    })
}

/// All sources below a folder, by the path of their module (`trace/show`).
fn read(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, String>) -> Result {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            read(&path, &format!("{prefix}{stem}/"), sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = match &*stem {
                "mod" => prefix.trim_end_matches('/').to_owned(),
                stem => format!("{prefix}{stem}"),
            };
            sources.insert(module, fs::read_to_string(&path)?);
        }
    }
    Ok(())
}

fn imports(sources: &BTreeMap<String, String>) -> Imports {
    let of = |(module, text): (&String, &String)| {
        let named = paths(text)
            .into_iter()
            .filter_map(|path| resolve(module, &path, sources))
            .filter(|other| other != module);
        (module.clone(), named.collect())
    };
    sources.iter().map(of).collect()
}

/// The module that a path names: the longest beginning that is one.
fn resolve(module: &str, path: &[&str], sources: &BTreeMap<String, String>) -> Option<String> {
    let mut base: Vec<&str> = match path.first()? {
        &"super" => module.split('/').collect(),
        _ => Vec::new(),
    };
    let mut rest = path;
    while let Some((&("super" | "crate" | "self"), tail)) = rest.split_first() {
        if rest[0] == "super" {
            base.pop();
        }
        rest = tail;
    }
    let whole: Vec<&str> = base.iter().chain(rest).copied().collect();
    let candidates = (base.len()..=whole.len()).rev();
    candidates
        .map(|length| whole[..length].join("/"))
        .find(|candidate| sources.contains_key(candidate))
}

/// All paths that begin with `crate::` or `super::`, with the branches of `{…}` spelled out.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let code = text
        .split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or_default();
    let mut words = Words(
        code.lines()
            .flat_map(|line| words(line.split("//").next().unwrap_or_default()))
            .collect(),
        0,
    );
    let mut found = Vec::new();
    let mut before = "";
    while let Some(word) = words.next() {
        if matches!(word, "crate" | "super") && before != "::" && words.peek() == Some("::") {
            words.1 -= 1;
            words.tree(&[], &mut found);
        }
        before = word;
    }
    found
}

/// Names, `::`, and single characters that are neither.
fn words(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = match first {
            ':' if rest.starts_with("::") => 2,
            c if is_name(c) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            c => c.len_utf8(),
        };
        let (word, tail) = rest.split_at(length);
        found.push(word);
        rest = tail.trim_start();
    }
    found
}

/// A list of words and a place in it.
struct Words<'a>(Vec<&'a str>, usize);

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.0.get(self.1).copied()
    }

    fn next(&mut self) -> Option<&'a str> {
        let word = self.peek();
        self.1 += 1;
        word
    }

    /// Reads `a::b::{c, d::e}` from here.
    fn tree(&mut self, before: &[&'a str], found: &mut Vec<Vec<&'a str>>) {
        let mut path = before.to_vec();
        while let Some(word) = self.peek() {
            if word == "{" {
                self.1 += 1;
                while self.peek().is_some_and(|word| word != "}") {
                    self.tree(&path, found);
                    // A comma, or what stands between a name and its comma (`as x`).
                    while self.peek().is_some_and(|word| !matches!(word, "," | "}")) {
                        self.1 += 1;
                    }
                    if self.peek() == Some(",") {
                        self.1 += 1;
                    }
                }
                self.1 += 1;
                return;
            }
            if !word.starts_with(|c: char| c.is_alphabetic() || c == '_') {
                break;
            }
            path.push(word);
            self.1 += 1;
            if self.peek() != Some("::") {
                break;
            }
            self.1 += 1;
        }
        found.push(path);
    }
}

/// The strongly connected components of more than one module.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = imports
        .keys()
        .map(|from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(module) = open.pop() {
                open.extend(imports[module].iter().filter(|next| seen.insert(*next)));
            }
            (from, seen)
        })
        .collect();
    let mut done = BTreeSet::new();
    let mut circles = Vec::new();
    for module in imports.keys() {
        let mates = reach[module]
            .iter()
            .filter(|other| reach[**other].contains(module));
        let circle: Vec<String> = mates.map(|other| (*other).clone()).collect();
        if circle.len() > 1 && done.insert(circle.clone()) {
            circles.push(circle);
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources = sources
            .iter()
            .map(|(name, text)| (name.to_string(), text.to_string()))
            .collect();
        circles(&imports(&sources))
    }

    #[test]
    fn a_part_of_an_allowed_circle_is_allowed() {
        let allowed = allowed("x/y: a, b, c\n");
        let circle = |names: &[&str]| {
            names
                .iter()
                .map(|name| name.to_string())
                .collect::<Vec<_>>()
        };
        assert!(is_allowed(&allowed, "x/y", &circle(&["a", "c"])));
        assert!(!is_allowed(&allowed, "x/y", &circle(&["a", "d"])));
        assert!(!is_allowed(&allowed, "x", &circle(&["a", "c"])));
    }

    #[test]
    fn use_trees_are_spelled_out() {
        let text = "use crate::{a::{self, B as C}, d};\nuse super::e::*; // crate::f\nlet x = crate::g::h(1);";
        let expected: &[&[&str]] = &[
            &["crate", "a", "self"],
            &["crate", "a", "B"],
            &["crate", "d"],
            &["super", "e"],
            &["crate", "g", "h"],
        ];
        assert_eq!(paths(text), expected);
    }

    #[test]
    fn a_circle_is_found_and_a_tree_is_none() {
        let tree = [("a", "use crate::b::B;"), ("b", "use crate::c;"), ("c", "")];
        assert_eq!(found(&tree), Vec::<Vec<String>>::new());
        let circle = [
            ("a", "use crate::b::B;"),
            ("b", "use super::c::C;"),
            ("c", "fn f() { crate::a::g() }"),
            ("d", "use crate::a;"),
        ];
        assert_eq!(found(&circle), [["a", "b", "c"]]);
    }

    #[test]
    fn folders_and_parents_count() {
        let nested = [
            ("v", "use crate::w;"),
            ("v/x", "use super::y::Y; use super::Item;"),
            ("v/y", "use crate::v::x::X;"),
            ("w", "use crate::v::Item;"),
        ];
        assert_eq!(found(&nested), [vec!["v", "w"], vec!["v/x", "v/y"]]);
    }

    #[test]
    fn tests_and_comments_do_not_count() {
        let sources = [
            ("a", "use crate::b;"),
            (
                "b",
                "//! crate::a\n#[cfg(test)]\nmod tests {\n use crate::a;\n}",
            ),
        ];
        assert_eq!(found(&sources), Vec::<Vec<String>>::new());
    }
}

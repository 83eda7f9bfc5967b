//! `cargo xtask modules`: crates import downwards ([`floors`]), and the modules of each crate import each other without
//! circles.
//!
//! A module imports another one of its crate when it names it by a path that begins with `crate::` or `super::`, or
//! calls a method that is defined there: by its type (`Self::name`, `self.name()`, `Type::name`), or by a name that
//! only one type of the crate has. So an object whose `impl` blocks in several files call each other is a circle.
//! A module may call what its submodules define. Tests do not count.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use clap::Args;

use crate::Result;
use crate::floors;
use crate::workspace::{Workspace, root};

use source::{Call, Source};

/// Arguments of `cargo xtask modules`.
#[derive(Args)]
pub(crate) struct Options {
    /// Fail when there is a circle, and print its imports
    #[arg(long)]
    check: bool,
}

/// What each module of a crate imports, with one of the names by which it does.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// Prints every circle; with `check` also its imports, and a circle fails.
pub(crate) fn run(options: &Options) -> Result {
    let (mut wrong, mut count) = (0, 0);
    let workspace = Workspace::load()?;
    let arrows = floors::check(&workspace)?;
    for folder in workspace.folders() {
        let name = folder.strip_prefix(root()).unwrap_or(&folder);
        let mut sources = BTreeMap::new();
        read(&folder.join("src"), "", &mut sources)?;
        leave_out_tests(&mut sources);
        count += sources.len();
        let imports = imports(&sources);
        for circle in circles(&imports) {
            wrong += 1;
            println!("{}: a circle of {}", name.display(), circle.join(", "));
            for (from, to, by) in within(&imports, &circle).filter(|_| options.check) {
                println!("  {from} imports {to}: {by}");
            }
        }
    }
    if options.check && wrong > 0 {
        return Err(format!("{wrong} import circles").into());
    }
    if options.check && arrows > 0 {
        return Err(format!("{arrows} dependencies that no floor allows").into());
    }
    println!("{count} modules, {wrong} circles");
    Ok(())
}

/// Removes the modules that exist in tests only.
fn leave_out_tests(sources: &mut BTreeMap<String, Source>) {
    let all = sources.values_mut();
    let tests: Vec<String> = all
        .flat_map(|source| std::mem::take(&mut source.for_tests))
        .collect();
    sources.retain(|module, _| {
        !tests
            .iter()
            .any(|test| module == test || is_below(module, test))
    });
}

/// The imports inside a circle.
fn within<'a>(
    imports: &'a Imports,
    circle: &'a [String],
) -> impl Iterator<Item = (&'a str, &'a str, &'a str)> {
    circle.iter().flat_map(|from| {
        let all = imports[from].iter();
        let inside = all.filter(|(to, _)| circle.contains(to));
        inside.map(|(to, by)| (from.as_str(), to.as_str(), by.as_str()))
    })
}

/// All sources below a folder, by the path of their module (`trace/show`).
fn read(folder: &Path, prefix: &str, sources: &mut BTreeMap<String, Source>) -> Result {
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
            let source = Source::parse(&module, &fs::read_to_string(&path)?)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            sources.insert(module, source);
        }
    }
    Ok(())
}

/// The names that a method of another type, the standard library's or another crate's, is likely to have as well: a call
/// `x.name()` of these is not taken for a call of the crate's own method.
const USUAL: &str = "\
    accept add all and any append arg args as_bytes as_mut_ptr as_ptr as_slice as_str at bind borrow bytes \
    chain clear clone close connect contains contains_key copy count data default drain drop elapsed end \
    entry env eq exists expect extend extension fill filter find finish first flush fold get get_mut hash id \
    insert into_iter is_empty is_some iter iter_mut join keys kill kind last len lines load lock log map max \
    metadata min mode name new next notify offset open or output parse path peek permissions poll pop port \
    position pow program push read recv remove replace reserve reset resize retain rev run seek send send_to \
    set set_len shutdown size skip sort source spawn split start status step step_by stop store sub sum swap \
    take then thread to_bits to_owned to_string to_vec truncate try_lock unlock unwrap update values wait \
    wait_until with wrap write write_all zip";

fn imports(sources: &BTreeMap<String, Source>) -> Imports {
    let methods = Methods::of(sources);
    let of = |(module, source): (&String, &Source)| {
        let named = source.paths.iter().filter_map(|path| {
            let other = resolve(path, sources)?;
            Some((other, path.join("::")))
        });
        let called = source.calls.iter().filter_map(|call| {
            let other = methods.definition(call)?;
            (!is_below(other, module)).then(|| (other.to_owned(), format!("{call}()")))
        });
        let all = named.chain(called).filter(|(other, _)| other != module);
        (module.clone(), all.collect())
    };
    sources.iter().map(of).collect()
}

/// The module that a path names: the longest beginning that is one.
fn resolve(path: &[String], sources: &BTreeMap<String, Source>) -> Option<String> {
    let candidates = (1..=path.len())
        .rev()
        .map(|length| path[..length].join("/"));
    candidates
        .into_iter()
        .find(|candidate| sources.contains_key(candidate))
}

/// `module` is a submodule of `parent`, at any depth.
fn is_below(module: &str, parent: &str) -> bool {
    module
        .strip_prefix(parent)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Where the methods of a crate's types are defined.
#[derive(Default)]
struct Methods<'a> {
    by_type: BTreeMap<(&'a str, &'a str), BTreeSet<&'a str>>,
    by_name: BTreeMap<&'a str, BTreeSet<&'a str>>,
    of_traits: BTreeSet<&'a str>,
}

impl<'a> Methods<'a> {
    fn of(sources: &'a BTreeMap<String, Source>) -> Self {
        let mut methods = Self::default();
        for (module, source) in sources {
            for (of, name) in &source.methods {
                methods
                    .by_type
                    .entry((of, name))
                    .or_default()
                    .insert(module);
                methods.by_name.entry(name).or_default().insert(module);
            }
            methods
                .of_traits
                .extend(source.of_traits.iter().map(String::as_str));
        }
        methods
    }

    /// The module that defines a method, if the call can mean no other.
    fn definition(&self, call: &Call) -> Option<&'a str> {
        let name = call.name.as_str();
        let modules = match &call.of {
            Some(of) => self.by_type.get(&(of, name)),
            None if USUAL.split(' ').any(|usual| usual == name)
                || self.of_traits.contains(name) =>
            {
                None
            }
            None => self.by_name.get(name),
        };
        let mut modules = modules?.iter();
        let module = modules.next()?;
        modules.next().is_none().then_some(module)
    }
}

/// The strongly connected components of more than one module.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> = imports
        .keys()
        .map(|from| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
            while let Some(module) = open.pop() {
                open.extend(imports[module].keys().filter(|next| seen.insert(*next)));
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
        let parsed = |(name, text): &(&str, &str)| {
            (name.to_string(), Source::parse(name, text).expect("Rust"))
        };
        let sources = sources.iter().map(parsed).collect();
        circles(&imports(&sources))
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
    fn tests_do_not_count() {
        let sources = [
            ("a", "use crate::b;"),
            (
                "b",
                "//! crate::a\n#[cfg(test)]\nmod tests {\n use crate::a;\n}",
            ),
        ];
        assert_eq!(found(&sources), Vec::<Vec<String>>::new());
        let mut files: BTreeMap<String, Source> = [
            ("a", "#[cfg(test)] mod b;"),
            ("a/b", ""),
            ("a/b/c", ""),
            ("ab", ""),
        ]
        .map(|(name, text)| (name.to_owned(), Source::parse(name, text).expect("Rust")))
        .into();
        leave_out_tests(&mut files);
        assert_eq!(files.keys().collect::<Vec<_>>(), ["a", "ab"]);
    }

    /// An object in several files whose methods call each other.
    #[test]
    fn calls_of_methods_are_imports() {
        let own = [
            ("a", "struct Link; impl Link { fn f(&self) { self.g() } }"),
            ("b", "impl Link { fn g(&self) { Self::h() } }"),
            ("c", "impl Link { fn h() { log!(\"{}\", LINK.f()) } }"),
            ("d", "impl Other { fn g(&self, x: &Link) { x.f() } }"),
        ];
        assert_eq!(found(&own), [["a", "b", "c"]]);
        let in_macro = [
            (
                "a",
                "impl Link { fn f(&self) { m!(if let Some(_) = self.g() => x) } }",
            ),
            ("b", "impl Link { fn g(&self) { n!(Link::f; 1) } }"),
        ];
        assert_eq!(found(&in_macro), [["a", "b"]]);
    }

    /// Names of traits, of the standard library, or of several types.
    #[test]
    fn calls_that_may_mean_another_method_are_none() {
        for (name, more) in [("f", "trait T { fn f(&self); }"), ("push", ""), ("f", "")] {
            let a = format!("impl A {{ fn {name}(&self) {{ crate::b::b() }} }} {more}");
            let c = if name == "f" {
                "impl C { fn f(&self) {} }"
            } else {
                ""
            };
            let b = format!("fn b() {{ x.{name}() }}");
            assert_eq!(
                found(&[("a", &a), ("b", &b), ("c", c)]),
                Vec::<Vec<String>>::new()
            );
        }
        let only = [
            ("a", "impl A { fn f(&self) { crate::b::b() } }"),
            ("b", "fn b() { x.f() }"),
        ];
        assert_eq!(found(&only), [["a", "b"]]);
    }

    #[test]
    fn a_module_may_call_its_submodules() {
        let tree = [
            ("v", "impl V { fn f(&self) { self.g() } }"),
            ("v/x", "impl V { fn g(&self) { self.f() } }"),
        ];
        assert_eq!(found(&tree), Vec::<Vec<String>>::new());
        let siblings = [
            ("v", "struct V;"),
            ("v/x", "impl V { fn g(&self) { self.h() } }"),
            ("v/y", "impl V { fn h(&self) { self.g() } }"),
        ];
        assert_eq!(found(&siblings), [["v/x", "v/y"]]);
    }

    #[test]
    fn use_trees_are_spelled_out() {
        let tree = [
            ("a", "use crate::{b::{self, B as C}, x}; use super::d::*;"),
            ("b", "use crate::{e::E, a};"),
            ("d", "mod inner { use super::super::a; }"),
            ("e", ""),
        ];
        assert_eq!(found(&tree), [["a", "b", "d"]]);
    }
}

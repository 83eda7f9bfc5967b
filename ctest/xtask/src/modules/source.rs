//! What one source file names: paths into its crate, methods that it defines, and methods that it calls.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ItemUse, Type, UseTree};

/// A file without its tests.
#[derive(Default)]
pub(super) struct Source {
    /// Paths that begin with `crate` or `super`, from the root of the crate.
    pub paths: BTreeSet<Vec<String>>,
    /// Methods and associated functions of types: type and name.
    pub methods: BTreeSet<(String, String)>,
    /// Names of the methods that it declares in traits, or implements for them.
    pub of_traits: BTreeSet<String>,
    /// Methods that it calls.
    pub calls: BTreeSet<Call>,
    /// Modules that it declares for tests only.
    pub for_tests: BTreeSet<String>,
    /// Module of the code that is being read; the file's own module or one within it.
    module: Vec<String>,
    /// Type of the `impl` block that is being read.
    object: Option<String>,
}

/// A method by its name.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    /// Its type, if the text says so: `Type::name`, `Self::name`, `self.name()`.
    pub of: Option<String>,
    pub name: String,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.of {
            Some(of) => write!(f, "{of}::{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl Source {
    pub(super) fn parse(module: &str, text: &str) -> syn::Result<Self> {
        let mut source = Self {
            module: module.split('/').map(str::to_owned).collect(),
            ..Self::default()
        };
        source.visit_file(&syn::parse_file(text)?);
        Ok(source)
    }

    /// A path of the source; `names` are what stands between `::`.
    fn path(&mut self, names: &[String]) {
        if let [.., of, name] = names
            && (of == "Self" || of.starts_with(char::is_uppercase))
        {
            let of = if of == "Self" {
                self.object.clone()
            } else {
                Some(of.clone())
            };
            self.calls.insert(Call {
                of,
                name: name.clone(),
            });
        }
        let mut base = match names.first().map(String::as_str) {
            Some("super") => self.module.clone(),
            Some("crate") => Vec::new(),
            _ => return,
        };
        for name in names {
            match name.as_str() {
                "super" => drop(base.pop()),
                "crate" | "self" => {}
                name => base.push(name.to_owned()),
            }
        }
        self.paths.insert(base);
    }

    /// The branches of a `use`, spelled out.
    fn branches(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.branches(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.path(&with(&name.ident)),
            UseTree::Rename(rename) => self.path(&with(&rename.ident)),
            UseTree::Glob(_) => self.path(before),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.branches(before, tree);
                }
            }
        }
    }

    /// The arguments of a macro, whatever its language: paths, and calls of methods.
    fn tokens(&mut self, tokens: TokenStream) {
        let trees: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, mark: char| matches!(trees.get(at), Some(TokenTree::Punct(p)) if p.as_char() == mark);
        let mut at = 0;
        while let Some(tree) = trees.get(at) {
            let begin = at;
            at += 1;
            let first = match tree {
                TokenTree::Group(group) => {
                    self.tokens(group.stream());
                    continue;
                }
                TokenTree::Ident(first) => first,
                _ => continue,
            };
            let mut names = vec![first.to_string()];
            while is(at, ':')
                && is(at + 1, ':')
                && let Some(TokenTree::Ident(name)) = trees.get(at + 2)
            {
                names.push(name.to_string());
                at += 3;
            }
            self.path(&names);
            let is_method = begin > 0 && is(begin - 1, '.');
            if is_method && matches!(trees.get(at), Some(TokenTree::Group(_))) {
                let is_own = begin > 1
                    && matches!(&trees[begin - 2], TokenTree::Ident(word) if word == "self")
                    && !(begin > 2 && is(begin - 3, '.'));
                let of = is_own.then(|| self.object.clone()).flatten();
                self.calls.insert(Call {
                    of,
                    name: names.remove(0),
                });
            }
        }
    }

    /// Reads the inside of something with another module or type around it.
    fn within<T>(
        &mut self,
        place: fn(&mut Self) -> &mut T,
        inner: T,
        read: impl FnOnce(&mut Self),
    ) {
        let outer = std::mem::replace(place(self), inner);
        read(self);
        *place(self) = outer;
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !attributes.iter().any(is_for_tests) {
            visit::visit_item(self, item);
        } else if let syn::Item::Mod(module) = item {
            let path = [self.module.as_slice(), &[module.ident.to_string()]].concat();
            self.for_tests.insert(path.join("/"));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let inner = [self.module.as_slice(), &[item.ident.to_string()]].concat();
        self.within(
            |source| &mut source.module,
            inner,
            |source| {
                visit::visit_item_mod(source, item);
            },
        );
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.branches(&[], &item.tree);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        for item in &item.items {
            if let syn::TraitItem::Fn(function) = item {
                self.of_traits.insert(function.sig.ident.to_string());
            }
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let object = match &*item.self_ty {
            Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        for inner in &item.items {
            if let syn::ImplItem::Fn(function) = inner {
                let name = function.sig.ident.to_string();
                if item.trait_.is_some() {
                    self.of_traits.insert(name);
                } else if let Some(object) = &object
                    && !function.attrs.iter().any(is_for_tests)
                {
                    self.methods.insert((object.clone(), name));
                }
            }
        }
        self.within(
            |source| &mut source.object,
            object,
            |source| {
                visit::visit_item_impl(source, item);
            },
        );
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        self.path(&names);
        visit::visit_path(self, path);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let of = match &*call.receiver {
            Expr::Path(path) if path.path.is_ident("self") => self.object.clone(),
            _ => None,
        };
        self.calls.insert(Call {
            of,
            name: call.method.to_string(),
        });
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        visit::visit_macro(self, called);
        self.tokens(called.tokens.clone());
    }
}

/// Whether it is `#[cfg(test)]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let Ok(list) = attribute.meta.require_list() else {
        return false;
    };
    list.path.is_ident("cfg") && list.tokens.to_string() == "test"
}

//! `cargo xtask headers`: the C headers. cbindgen makes the types and functions from the Rust sources; `constants.h` of
//! the crate goes before them. `layout` compares the constants with those of Rust.

pub(crate) mod constants;

use clap::Args;

use crate::workspace::root;
use crate::{Result, compile, diff};

/// Arguments of `cargo xtask headers`.
#[derive(Args)]
pub(crate) struct Options {
    /// Compare with the committed files and compile each in all dialects; write nothing
    #[arg(long)]
    check: bool,
}

/// What a header is made from, below the top of the repository.
struct Parts {
    /// Its file below `headers/`.
    name: &'static str,
    /// cbindgen's configuration.
    config: &'static str,
    /// What goes before the types, if there is something.
    constants: Option<&'static str>,
    /// The Rust source of constants that are made from it.
    declared: Option<&'static str>,
    /// Rust sources, in the order of their items.
    sources: &'static [&'static str],
}

/// Types first; functions in the order of the specification.
const HEADERS: [Parts; 3] = [
    Parts {
        name: "vipl.h",
        config: "libvipl/cbindgen.toml",
        constants: Some("base/abi/src/constants.h"),
        declared: Some("base/abi/src/constants.rs"),
        sources: &[
            "base/abi/src/types.rs",
            "base/abi/src/enums.rs",
            "base/abi/src/layout.rs",
            "libvipl/src/nic.rs",
            "libvipl/src/vi.rs",
            "libvipl/src/connection.rs",
            "libvipl/src/mem.rs",
            "libvipl/src/queue.rs",
            "libvipl/src/cq.rs",
            "libvipl/src/error.rs",
            "libvipl/src/nameservice.rs",
        ],
    },
    Parts {
        name: "vipl_ext.h",
        config: "libvipl/cbindgen_ext.toml",
        constants: None,
        declared: None,
        sources: &["libvipl/src/ext.rs"],
    },
    Parts {
        name: "vipl_plugin.h",
        config: "base/plugin-abi/cbindgen.toml",
        constants: Some("base/plugin-abi/src/constants.h"),
        declared: None,
        sources: &[
            "base/plugin-abi/src/objects.rs",
            "base/plugin-abi/src/tables.rs",
            "base/plugin-abi/src/layers.rs",
            "base/plugin-abi/src/lib.rs",
        ],
    },
];

/// One generated header.
pub(crate) struct Header {
    /// Name below `headers/`.
    pub name: &'static str,
    /// The whole file.
    pub text: String,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    for header in generate()? {
        let path = format!("headers/{}", header.name);
        diff::settle(&path, &header.text, options.check, "cargo xtask headers")?;
    }
    if options.check {
        compile::check_all()
    } else {
        Ok(())
    }
}

/// Makes all headers in memory: vipl.h, vipl_ext.h, vipl_plugin.h.
pub(crate) fn generate() -> Result<[Header; 3]> {
    let [standard, extension, plugin] = &HEADERS;
    Ok([standard.header()?, extension.header()?, plugin.header()?])
}

impl Parts {
    fn header(&self) -> Result<Header> {
        let root = root();
        let mut config = cbindgen::Config::from_file(root.join(self.config))?;
        let mut before = String::new();
        if let Some(constants) = self.constants {
            before = format!("\n{}\n", std::fs::read_to_string(root.join(constants))?);
        }
        if let Some(declared) = self.declared {
            before += &constants::defines(&std::fs::read_to_string(root.join(declared))?)?;
        }
        config.after_includes = Some(before + "\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n");
        let trailer = config.trailer.take().unwrap_or_default();
        let mut builder = cbindgen::Builder::new().with_config(config);
        for source in self.sources {
            builder = builder.with_src(root.join(source));
        }
        let mut text = Vec::new();
        builder.generate()?.write(&mut text);
        let text = String::from_utf8(text)?;
        // Before the end of the include guard.
        let (body, end) = text.rsplit_once("\n#endif").ok_or("no include guard")?;
        let text = tidy(&format!(
            "{body}\n{trailer}\n#ifdef __cplusplus\n}}\n#endif\n\n#endif{end}"
        ));
        match text.lines().find(|line| !line.is_ascii()) {
            None => Ok(Header {
                name: self.name,
                text,
            }),
            Some(line) => Err(format!("{}: not ASCII: {line}", self.name).into()),
        }
    }
}

/// Comments as C programmers set them, and what C90 does not take.
fn tidy(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = text.lines();
    // Types that are declared so far: they are named without `struct`, which debuggers find in the program, too.
    let mut known: Vec<&str> = Vec::new();
    let mut moved = 0;
    while let Some(line) = lines.next() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.trim() == "/*" {
            let inner = lines.by_ref().take_while(|line| line.trim() != "*/");
            // What is set in stays so: further lines of an item of a list.
            let text = |line: &str| {
                let line = line.strip_prefix(indent).unwrap_or(line);
                plain(line.strip_prefix(' ').unwrap_or(line).trim_end())
            };
            let inner: Vec<String> = inner.map(text).collect();
            let joined = inner.join(&format!("\n{indent} * "));
            out.push(format!("{indent}/* {joined} */").replace("* \n", "*\n"));
            continue;
        }
        if let Some(name) = line.strip_prefix("} ") {
            known.push(name.trim_end_matches(';'));
            if let Some(last) = out.last_mut() {
                // Of an enumeration.
                *last = last.trim_end_matches(',').to_owned();
            }
        }
        let short = without_keywords(line, &known);
        // A handler among the parameters begins with spaces, too.
        let is_first = line.contains('(') && !line.starts_with("     ");
        // Further parameters stay below the first one.
        let further = !is_first && moved > 0 && line.starts_with("     ");
        if is_first {
            moved = line.rfind('(').unwrap_or(0) - short.rfind('(').unwrap_or(0);
        }
        let line = short[if further { moved } else { 0 }..].to_owned();
        if !(line.is_empty() && out.last().is_some_and(String::is_empty)) {
            out.push(line);
        }
    }
    out.join("\n") + "\n"
}

/// `struct X` is `X` for each known X.
fn without_keywords(line: &str, known: &[&str]) -> String {
    let mut line = line.to_owned();
    // The second declaration of a type, for another dialect.
    if line.ends_with('{') {
        return line;
    }
    for name in known {
        for keyword in ["struct", "union", "enum"] {
            line = line.replace(&format!("{keyword} {name} "), &format!("{name} "));
        }
    }
    line
}

/// Rust documentation as plain ASCII text.
fn plain(text: &str) -> String {
    text.replace("[`", "")
        .replace("`]", "")
        .replace('§', "")
        .replace('…', "...")
}

#[cfg(test)]
mod tests {
    use super::tidy;

    #[test]
    fn c_is_set_for_people_and_old_compilers() {
        let text = "/*\n What it [`is`] (§1).\n\n - More,\n   much.\n */\ntypedef enum E {\n  /*\n   One…\n   */\n  A = 0,\n} E;\n\n\n\
                    enum E F(struct S *s,\n         int x);\n";
        let expected = "/* What it is (1).\n *\n * - More,\n *   much. */\ntypedef enum E {\n  /* One... */\n  A = 0\n} E;\n\n\
                        E F(struct S *s,\n    int x);\n";
        assert_eq!(tidy(text), expected);
    }
}

//! `cargo xtask headers`: the C headers, made from the Rust sources.
//!
//! ```text
//!   base/abi, libvipl/src ── cbindgen ──▶ items ──┐
//!   constants.rs (text) ───────────────▶ defines ────┴─ page ──▶ headers/vipl.h, vipl_ext.h
//!   base/plugin-abi ────────────── the same two ways ──────────────▶ headers/vipl_plugin.h
//! ```
//!
//! cbindgen knows the types; [`items`] takes its text apart, [`defines`] keeps the constants as
//! they are written in the source (cbindgen would print decimals), [`page`] sets both in a form
//! people like to read.

mod defines;
mod items;
mod page;

use std::path::{Path, PathBuf};

use clap::Args;

pub(crate) use items::{Item, Kind};

use crate::workspace::root;
use crate::{Result, compile, diff};

/// Arguments of `cargo xtask headers`.
#[derive(Args)]
pub(crate) struct Options {
    /// Compare with the committed files and compile each in all dialects; write nothing
    #[arg(long)]
    check: bool,
}

/// One generated header.
pub(crate) struct Header {
    /// Name below `headers/`.
    pub name: &'static str,
    /// Its types and functions, in order.
    pub items: Vec<Item>,
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
pub(crate) fn generate() -> Result<Vec<Header>> {
    let root = root();
    let sources = [root.join("base/abi/src"), root.join("libvipl/src")];
    let constants = std::fs::read_to_string(root.join("base/abi/src/constants.rs"))?;
    let (frame, items) = parse("libvipl", &sources)?;
    let ours = |item: &Item| item.name.starts_with("vipl_");
    let (extra, standard): (Vec<_>, Vec<_>) = items.into_iter().partition(ours);

    let plugin_sources = root.join("base/plugin-abi/src");
    let plugin_constants = std::fs::read_to_string(plugin_sources.join("lib.rs"))?;
    let (plugin_frame, plugin_items) = parse("base/plugin-abi", &[plugin_sources])?;

    let header = |name, frame, constants: &str, items: Vec<Item>| -> Result<Header> {
        let text = page::compose(&frame, &defines::parse(constants), &items)?;
        Ok(Header { name, items, text })
    };
    Ok(vec![
        header("vipl.h", frame, &constants, standard)?,
        header("vipl_ext.h", page::Frame::extension(), "", extra)?,
        header(
            "vipl_plugin.h",
            plugin_frame,
            &plugin_constants,
            plugin_items,
        )?,
    ])
}

/// Lets cbindgen read a crate, and takes its text apart. What surrounds the items comes back as
/// frame.
fn parse(folder: &str, sources: &[PathBuf]) -> Result<(page::Frame, Vec<Item>)> {
    let folder = root().join(folder);
    let mut config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let frame = page::Frame::take_from(&mut config);
    let mut text = Vec::new();
    cbindgen::Builder::new()
        .with_crate(&folder)
        .with_config(config)
        .generate()?
        .write(&mut text);
    let mut items = items::parse(&String::from_utf8(text)?)?;
    let source = read_all(sources)?;
    items.sort_by_key(|item| item.place(&source));
    Ok((frame, items))
}

/// The text of all source files, for the order of what is in them.
fn read_all(folders: &[PathBuf]) -> Result<String> {
    let mut text = String::new();
    for folder in folders {
        let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
        let mut files: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).collect();
        files.retain(|file| file.extension() == Some(Path::new("rs").as_os_str()));
        files.sort();
        for file in files {
            text.push_str(&std::fs::read_to_string(file)?);
        }
    }
    Ok(text)
}

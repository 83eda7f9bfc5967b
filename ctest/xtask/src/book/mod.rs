//! `cargo xtask book`: the documents as a book, built by mdBook into `target/book/html`.
//!
//! ```text
//!   docs/book/SUMMARY.md ──▶ summary ──▶ pages ──▶ stage ──▶ target/book/src ──▶ mdbook ──▶ target/book/html ──▶ links
//!                            which pages, in which order      the pages, and what they link to                   checked
//! ```
//!
//! The documents stay where they are. The book is made of copies in folders of the same names, so a link that is right in
//! the repository is right in the book. `docs/decisions/0141-a-book-of-the-documents.md` says why this tool, and how it is had.

mod links;
mod stage;
mod summary;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::Result;
use crate::browser::Browser;
use crate::workspace::{Workspace, cargo, output, root, run as run_program};

use summary::Summary;

/// The folder of the book's own files.
const FOLDER: &str = "docs/book";
/// mdBook's version. It is compiled from the sources that its own lock file names.
const VERSION: &str = "0.5.4";

/// Pages that a browser looks at, and what it must find: the contents are beside the text, the search finds a word that
/// many pages have.
const LOOKED_AT: &[(&str, &str, &str)] = &[
    ("index.html", "", "Troubleshooting</a>"),
    ("docs/DIAGNOSIS.html", "", "It hangs"),
    (
        "docs/TROUBLESHOOTING.html",
        "?search=flush",
        " search results for",
    ),
    ("docs/SPECIFICATION.html", "", "VipPostSend"),
];

/// Arguments of `cargo xtask book`.
#[derive(Args)]
pub(crate) struct Options {
    /// Check the pages only where mdBook cannot be had
    #[arg(long)]
    or_skip: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    let target = Workspace::load()?.target;
    let folder = target.join("book");
    let summary = Summary::read(&root(), Path::new(FOLDER))?;
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    stage::stage(&root(), &summary, &folder)?;
    let mdbook = match mdbook(&target) {
        Err(error) if options.or_skip => {
            println!("SKIP the book: {error}");
            return Ok(());
        }
        mdbook => mdbook?,
    };
    run_program(Command::new(mdbook).arg("build").arg(&folder))?;
    let html = folder.join("html");
    let count = links::check(&html)?;
    println!("{}: {count} links lead somewhere", html.display());
    look(&html)
}

/// Opens pages in a browser, as a reader does: from files, in a wide window and a narrow one.
fn look(html: &Path) -> Result {
    let Some(browser) = Browser::find() else {
        println!("SKIP a look at the book: there is no headless browser");
        return Ok(());
    };
    for (page, query, part) in LOOKED_AT {
        for width in [1200, 400] {
            let shown = browser.show(&html.join(page), query, width)?;
            let missing = (!shown.dom.contains(part)).then(|| format!("it has no {part}"));
            if let Some(complaint) = shown.complaint().or(missing) {
                return Err(format!("{page}{query} at {width} pixels: {complaint}").into());
            }
        }
    }
    println!("{} pages looked at", 2 * LOOKED_AT.len());
    Ok(())
}

/// The folder of the built book; it is built if there is none.
pub(crate) fn html(workspace: &Workspace) -> Result<PathBuf> {
    let html = workspace.target.join("book/html");
    if !html.join("index.html").exists() {
        run(&Options { or_skip: false })?;
    }
    Ok(html)
}

/// The program: that of the user if it is of this version, else one that is compiled once.
fn mdbook(target: &Path) -> Result<PathBuf> {
    let is_it = |program: &Path| {
        let said = output(Command::new(program).arg("--version"));
        said.is_ok_and(|said| said.trim() == format!("mdbook v{VERSION}"))
    };
    let own = target.join(format!("tools/mdbook-{VERSION}/bin/mdbook"));
    if let Some(found) = [PathBuf::from("mdbook"), own.clone()]
        .into_iter()
        .find(|program| is_it(program))
    {
        return Ok(found);
    }
    let place = own.ancestors().nth(2).ok_or("no folder for mdBook")?;
    let work = tempfile::tempdir_in(target)?;
    // A build without optimisation and debug information takes half the time, and the book still less than a few seconds.
    let mut install = cargo();
    install
        .args(["install", "mdbook", "--version", VERSION, "--locked"])
        .args(["--debug", "--no-default-features", "--features", "search"])
        .args(["--quiet", "--no-track", "--root"])
        .arg(place)
        .arg("--target-dir")
        .arg(work.path())
        .env("CARGO_PROFILE_DEV_DEBUG", "false");
    output(&mut install)?;
    Ok(own)
}

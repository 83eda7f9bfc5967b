//! Pages as a headless browser shows them. It needs nothing of this crate, and `ctest/xtask` includes the file.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What Chromium is called.
const NAMES: &[&str] = &["chromium", "chromium-browser", "google-chrome"];
/// A page must be there after so many seconds of this machine, and so many milliseconds of the page.
const SECONDS: &str = "120";
const PAGE_MS: u32 = 10_000;
/// Writes into the page, when it has been loaded, what cannot be read from its source: how much wider it is than the window, and how
/// many pictures were not found or have no size.
const MEASURE: &str = "<script>addEventListener('load', () => {
    const page = document.documentElement;
    const box = picture => { const at = picture.getBoundingClientRect(); return at.width * at.height; };
    const empty = picture => !(picture.tagName == 'IMG' ? picture.naturalWidth : box(picture));
    page.dataset.beyond = Math.max(0, page.scrollWidth - page.clientWidth);
    page.dataset.empty = [...document.querySelectorAll('img, body > svg')].filter(empty).length;
});</script></body>";

/// A headless browser.
pub struct Browser(PathBuf);

/// A page that it has shown.
pub struct Shown {
    /// The page after its scripts have run.
    pub dom: String,
    /// What the browser said on its console: errors, missing files.
    pub console: Vec<String>,
}

impl Browser {
    /// The first one of `PATH`.
    pub fn find() -> Option<Browser> {
        let path = std::env::var_os("PATH")?;
        let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let mut files = NAMES.iter().flat_map(|name| {
            let file = move |folder: &PathBuf| folder.join(name);
            folders.iter().map(file)
        });
        files.find(|file| file.is_file()).map(Browser)
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.0
    }

    /// Shows a file in a window of so many pixels, with `query` after its name: `?search=word`.
    ///
    /// # Errors
    /// The file cannot be read, its folder cannot be written, or the browser has not shown it.
    pub fn show(&self, file: &Path, query: &str, width: u32) -> io::Result<Shown> {
        let folder = file.parent().unwrap_or(Path::new("/"));
        let text = fs::read_to_string(file)?;
        let (before, after) = text
            .rsplit_once("</body>")
            .ok_or_else(|| io::Error::other(format!("{} has no body", file.display())))?;
        // Beside the page, so that what it loads is found.
        let stem = format!(".shown-{}-{width}", std::process::id());
        let copy = folder.join(format!("{stem}.html"));
        let profile = std::env::temp_dir().join(format!("vipl{stem}"));
        fs::write(&copy, format!("{before}{MEASURE}{after}"))?;
        let said = Command::new("timeout")
            .arg(SECONDS)
            .arg(&self.0)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
            .args(["--no-first-run", "--enable-logging=stderr"])
            .arg(format!("--virtual-time-budget={PAGE_MS}"))
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(format!("--window-size={width},900"))
            .arg(format!("file://{}{query}", copy.display()))
            .stdin(Stdio::null())
            .output();
        let _ = fs::remove_file(&copy);
        let _ = fs::remove_dir_all(&profile);
        let said = said?;
        let dom = String::from_utf8_lossy(&said.stdout).into_owned();
        let logged = String::from_utf8_lossy(&said.stderr);
        if !said.status.success() || !dom.contains("data-beyond=") {
            let why = format!("{}: {}\n{logged}", file.display(), said.status);
            return Err(io::Error::other(why));
        }
        let console = logged.lines().filter(|line| line.contains("CONSOLE"));
        Ok(Shown {
            console: console.map(str::to_owned).collect(),
            dom,
        })
    }
}

impl Shown {
    /// What is wrong with it: words on the console, a page wider than its window, a picture without a size.
    pub fn complaint(&self) -> Option<String> {
        let value = |name: &str| {
            let (_, rest) = self.dom.split_once(&format!(" {name}=\""))?;
            rest.split('"').next()
        };
        if let Some(line) = self.console.first() {
            return Some(format!("console: {line}"));
        }
        for (name, wrong) in [
            ("data-beyond", "pixels of the page are beyond the window"),
            ("data-empty", "pictures have no size"),
        ] {
            match value(name) {
                Some("0") => {}
                other => return Some(format!("{} {wrong}", other.unwrap_or("unknown"))),
            }
        }
        None
    }
}

//! What gets installed, and where.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::man;
use crate::place::Place;
use crate::sbom;
use crate::static_libs;
use crate::workspace::{Workspace, output, root};

/// The headers that users get.
const HEADERS: [&str; 3] = ["vipl.h", "vipl_ext.h", "vipl_plugin.h"];

/// The agent, and the device processes that it looks for beside itself.
const AGENT_PROGRAMS: [&str; 2] = ["vipkad", "vipl-clan"];

/// What users read, beside `docs/*.md`.
const DOCUMENTS: [&str; 6] = [
    "README.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "plugins/PLUGINS.md",
];

/// Pictures of documents, programs that are built with the installed library alone, and the pages about them: where in the source, and where below the
/// documents. They use no crate of the workspace.
const COPIED: [(&str, &str); 3] = [
    ("examples", "examples"),
    ("docs/learn", "learn"),
    ("docs/diagnosis", "diagnosis"),
];
const OF_COPIED: [&str; 6] = ["c", "h", "md", "svg", "png", "Makefile"];

/// The Python package, below the prefix where Debian's interpreters look for packages, and what shows how to use it.
const PYTHON: &str = "python/vipl";
const PYTHON_FOLDER: &str = "lib/python3/dist-packages/vipl";
const PYTHON_EXAMPLES: [(&str, &str); 3] = [
    ("python/examples", "py"),
    ("python/notebooks", "ipynb"),
    ("python/notebooks", "py"),
];

/// Files of the source in which the place is put, and where below LIBDIR they go.
const OF_LIBRARY: [(&str, &str); 4] = [
    ("pkgconfig/vipl.pc.in", "pkgconfig/vipl.pc"),
    ("pkgconfig/vipl-static.pc.in", "pkgconfig/vipl-static.pc"),
    (
        "packaging/cmake/viplConfig.cmake.in",
        "cmake/vipl/viplConfig.cmake",
    ),
    (
        "packaging/cmake/viplConfigVersion.cmake.in",
        "cmake/vipl/viplConfigVersion.cmake",
    ),
];

/// The same, below the prefix.
const OF_PREFIX: [(&str, &str); 5] = [
    (
        "packaging/systemd/vipkad.socket",
        "lib/systemd/system/vipkad.socket",
    ),
    (
        "packaging/systemd/vipkad.service.in",
        "lib/systemd/system/vipkad.service",
    ),
    (
        "packaging/systemd/vipkad.sysusers",
        "lib/sysusers.d/vipkad.conf",
    ),
    (
        "packaging/systemd/vipkad.tmpfiles",
        "lib/tmpfiles.d/vipkad.conf",
    ),
    ("packaging/vipl.supp", "share/vipl/vipl.supp"),
];

/// What gdb loads with the library, by the library's path below this folder.
const GDB_SCRIPT: &str = "packaging/gdb/vipl-gdb.py";
const GDB_FOLDER: &str = "share/gdb/auto-load";

/// What becomes an installed file.
pub(super) enum Source {
    File(PathBuf),
    Text(String),
    Link(&'static str),
}

/// One file: from where, its final path, its permissions.
pub(super) struct Entry {
    pub(super) source: Source,
    pub(super) path: PathBuf,
    pub(super) mode: u32,
}

/// All files.
pub(super) fn entries(place: &Place, workspace: &Workspace, built: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut add =
        |source: Source, path: PathBuf, mode: u32| entries.push(Entry { source, path, mode });
    binaries(place, workspace, built, &mut add);
    let (root, libraries, prefix) = (root(), place.libraries(), &place.prefix);
    for found in fs::read_dir(conformance(built)?)? {
        let program = found?.path();
        let name = program.file_name().ok_or("a program without a name")?;
        let path = prefix.join("libexec/vipl/conform").join(name);
        add(Source::File(program), path, 0o755);
    }
    for name in HEADERS {
        let header = root.join("headers").join(name);
        add(
            Source::File(header),
            prefix.join("include").join(name),
            0o644,
        );
    }
    let pointer_bytes = pointer_bytes(&built.join("libvipl.so"))?;
    let of_library = OF_LIBRARY
        .iter()
        .map(|(from, to)| (from, libraries.join(to)));
    let of_prefix = OF_PREFIX.iter().map(|(from, to)| (from, prefix.join(to)));
    for (from, to) in of_library.chain(of_prefix) {
        let text = filled(&root.join(from), place, workspace, pointer_bytes)?;
        add(Source::Text(text), to, 0o644);
    }
    let library = libraries.join("libvipl.so.1-gdb.py");
    let script = prefix
        .join(GDB_FOLDER)
        .join(library.strip_prefix("/").unwrap_or(&library));
    add(Source::File(root.join(GDB_SCRIPT)), script, 0o644);
    let sample = place.configuration().join("vipl/vipl.conf.sample");
    add(
        Source::File(root.join("pkgconfig/vipl.conf")),
        sample,
        0o644,
    );
    let share = prefix.join("share");
    for (path, text) in shared_texts(workspace, built)? {
        add(Source::Text(text), share.join(path), 0o644);
    }
    let documents = share.join("doc/vipl");
    let mut written: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root.join(name)).collect();
    for found in fs::read_dir(root.join("docs"))? {
        written.push(found?.path());
    }
    for document in written.into_iter().filter(|path| path.is_file()) {
        let name = document.file_name().ok_or("a document without a name")?;
        let path = documents.join(name);
        add(Source::File(document), path, 0o644);
    }
    for (from, to) in COPIED {
        for (source, path) in copied(&root.join(from))? {
            add(source, documents.join(to).join(path), 0o644);
        }
    }
    let mut python = files_of(PYTHON, "py", &prefix.join(PYTHON_FOLDER))?;
    python.extend(files_of(PYTHON, "typed", &prefix.join(PYTHON_FOLDER))?);
    for (folder, extension) in PYTHON_EXAMPLES {
        let to = documents.join("examples/python");
        python.extend(files_of(folder, extension, &to)?);
    }
    for (from, to) in python {
        add(Source::File(from), to, 0o644);
    }
    let list = Source::Text(sbom::document(workspace)?);
    add(list, documents.join("vipl.spdx.json"), 0o644);
    Ok(entries)
}

/// The files of the built book.
pub(super) fn book(place: &Place, html: &Path) -> Result<Vec<Entry>> {
    let to = place.prefix.join("share/doc/vipl/book");
    let (mut entries, mut folders) = (Vec::new(), vec![html.to_owned()]);
    while let Some(folder) = folders.pop() {
        for found in fs::read_dir(folder)? {
            let file = found?.path();
            if file.is_dir() {
                folders.push(file);
                continue;
            }
            let path = to.join(file.strip_prefix(html)?);
            entries.push(Entry {
                source: Source::File(file),
                path,
                mode: 0o644,
            });
        }
    }
    Ok(entries)
}

/// The files of a folder of the source with this extension, with their places in `to`.
fn files_of(folder: &str, extension: &str, to: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut files = Vec::new();
    for found in fs::read_dir(root().join(folder))? {
        let file = found?.path();
        if file.extension().is_some_and(|found| found == extension) {
            let name = file.file_name().ok_or("a file without a name")?;
            files.push((file.clone(), to.join(name)));
        }
    }
    Ok(files)
}

/// The files of a folder and of those inside of it that are not crates, with their paths below it.
fn copied(folder: &Path) -> Result<Vec<(Source, PathBuf)>> {
    let mut folders = vec![folder.to_owned()];
    for found in fs::read_dir(folder)? {
        let path = found?.path();
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            folders.push(path);
        }
    }
    let mut files = Vec::new();
    for inside in folders {
        for found in fs::read_dir(inside)? {
            let file = found?.path();
            let kind = file.extension().or(file.file_name());
            if !kind.is_some_and(|kind| OF_COPIED.iter().any(|wanted| kind == *wanted)) {
                continue;
            }
            let path = file.strip_prefix(folder)?.to_owned();
            files.push((Source::File(file), path));
        }
    }
    Ok(files)
}

/// The programs that vip_conform runs, compiled; each is a file of the folder that is returned.
fn conformance(built: &Path) -> Result<PathBuf> {
    let folder = built.join("conform");
    let mut command = Command::new(built.join("vipl-conformance"));
    output(command.arg("--programs").arg(&folder))?;
    Ok(folder)
}

/// Libraries and programs.
fn binaries(
    place: &Place,
    workspace: &Workspace,
    built: &Path,
    add: &mut impl FnMut(Source, PathBuf, u32),
) {
    let (libraries, prefix) = (place.libraries(), &place.prefix);
    let mut put =
        |from: &str, to: PathBuf, mode: u32| add(Source::File(built.join(from)), to, mode);
    for name in workspace.tools() {
        put(&name, prefix.join("bin").join(&name), 0o755);
    }
    for name in AGENT_PROGRAMS {
        put(name, prefix.join("libexec/vipl").join(name), 0o755);
    }
    put("libvipl.so", libraries.join("libvipl.so.1"), 0o755);
    put("libvipl.a", libraries.join("libvipl.a"), 0o644);
    for name in workspace.plugins() {
        let file = format!("lib{name}.so");
        let path = libraries.join("vipl/abi1").join(&file);
        put(&file, path, 0o755);
    }
    // The name by which libfabric recognizes a provider; cargo names a library after its crate.
    put(
        "libfi_vipl.so",
        libraries.join("libfabric/libvipl-fi.so"),
        0o755,
    );
    let link = Source::Link("libvipl.so.1");
    add(link, libraries.join("libvipl.so"), 0o777);
    let wrapper = Source::File(root().join("mpi/vipl-mpirun"));
    add(wrapper, prefix.join("bin/vipl-mpirun"), 0o755);
}

/// Manual pages and completions, with their paths below `share`.
fn shared_texts(workspace: &Workspace, built: &Path) -> Result<Vec<(PathBuf, String)>> {
    let pages = man::pages(&workspace.version)?.into_iter();
    let pages = pages.chain(man::programs(workspace, built)?);
    let mut texts: Vec<(PathBuf, String)> = pages
        .map(|page| (Path::new("man").join(page.path()), page.text))
        .collect();
    for tool in workspace.tools() {
        for (shell, path) in [
            ("bash", format!("bash-completion/completions/{tool}")),
            ("fish", format!("fish/vendor_completions.d/{tool}.fish")),
            ("zsh", format!("zsh/site-functions/_{tool}")),
        ] {
            texts.push((path.into(), man::generate(built, &tool, shell)?));
        }
    }
    Ok(texts)
}

/// A file with the place put in.
fn filled(
    template: &Path,
    place: &Place,
    workspace: &Workspace,
    pointer_bytes: usize,
) -> Result<String> {
    let text = fs::read_to_string(template).map_err(|e| format!("{}: {e}", template.display()))?;
    // CMake separates what pkg-config lists.
    let cmake = template.ends_with("viplConfig.cmake.in");
    let private = static_libs::pinned()?.join(if cmake { ";" } else { " " });
    Ok(text
        .replace("@prefix@", &place.prefix.to_string_lossy())
        .replace("@libdir@", &place.libdir)
        .replace("@version@", &workspace.version)
        .replace("@private@", &private)
        .replace("@pointer@", &pointer_bytes.to_string())
        .replace("@bits@", &(8 * pointer_bytes).to_string()))
}

/// The size of a pointer in the programs of a library, from its ELF class.
fn pointer_bytes(library: &Path) -> Result<usize> {
    let bytes = fs::read(library).map_err(|e| format!("{}: {e}", library.display()))?;
    match bytes.get(..5) {
        Some(b"\x7fELF\x01") => Ok(4),
        Some(b"\x7fELF\x02") => Ok(8),
        _ => Err(format!("{} is not an ELF file", library.display()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_installed_is_built() {
        let workspace = Workspace::load().unwrap();
        let products = workspace.products();
        let targets = |package: &serde_json::Value| package["targets"].as_array().cloned();
        let of_products = workspace.packages().iter().filter(|package| {
            let name = package["name"].as_str().unwrap();
            products.iter().any(|product| product == name)
        });
        let built: Vec<String> = of_products
            .flat_map(|package| targets(package).unwrap())
            .map(|target| target["name"].as_str().unwrap().to_owned())
            .collect();
        let place = Place {
            prefix: "/usr".into(),
            libdir: "lib".to_owned(),
            destdir: None,
        };
        let mut count = 0;
        let mut check = |source: Source, _: PathBuf, _: u32| {
            let Source::File(file) = source else { return };
            let Ok(file) = file.strip_prefix("/built") else {
                return;
            };
            let stem = file.file_stem().unwrap().to_str().unwrap();
            let name = stem.strip_prefix("lib").unwrap_or(stem);
            assert!(built.iter().any(|target| target == name), "{name}");
            count += 1;
        };
        binaries(&place, &workspace, Path::new("/built"), &mut check);
        assert!(count > 10, "{count} files");
    }
}

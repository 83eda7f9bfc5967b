use std::fs::{File, read_dir};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vipl_pages::{Snapshot, folder, life, read};

use super::*;
use vipl_pages::record::Happened;

/// A folder in memory, for one test at a time: a child of `fork` knows one file of its process.
struct Place(
    tempfile::TempDir,
    #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>,
);

impl Place {
    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// `None` where there is none.
fn place() -> Option<Place> {
    static ONE: Mutex<()> = Mutex::new(());
    vipl_guard::install();
    let place = tempfile::tempdir_in("/dev/shm").ok()?;
    let closed = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(place.path(), closed).ok()?;
    Some(Place(
        place,
        ONE.lock().unwrap_or_else(PoisonError::into_inner),
    ))
}

fn settings(publish: &str) -> Settings {
    let variable = ("VIPL_PUBLISH".to_owned(), publish.to_owned());
    Settings::of("", std::iter::once(variable))
}

fn files(place: &Path) -> Vec<std::path::PathBuf> {
    let folder = folder::Folder::open(place, file::user()).unwrap();
    folder
        .names(100)
        .iter()
        .map(|name| place.join(name))
        .collect()
}

fn pages_in(place: &Path) -> Pages {
    Pages::new(&settings(place.to_str().unwrap()))
}

#[test]
fn a_process_publishes_in_a_file_of_its_own() {
    let Some(place) = place() else { return };
    let pages = pages_in(place.path());
    let found = files(place.path());
    assert_eq!(found.len(), 1);
    let about = found[0].metadata().unwrap();
    assert_eq!((about.mode() & 0o777, about.len()), (0o600, BYTES as u64));
    assert!(about.blocks() * 512 < 64 << 10, "{} blocks", about.blocks());
    pages.counter("a.b").unwrap().store(7, Ordering::Relaxed);
    assert!(std::ptr::eq(
        pages.counter("a.b").unwrap(),
        pages.counter("a.b").unwrap()
    ));
    assert_eq!(pages.counters(), [("a.b".to_owned(), 7)]);
    let read = Snapshot::read(&File::open(&found[0]).unwrap()).unwrap();
    assert_eq!(read.process.pid, u64::from(std::process::id()));
    assert_eq!(read.counters, [("a.b".to_owned(), 7)]);
}

#[test]
fn the_file_stays_after_exit_only_with_an_open_nic() {
    let Some(place) = place() else { return };
    let pages = pages_in(place.path());
    let nic = pages.nic(3);
    nic.handle.set(3_u64);
    pages.end();
    assert_eq!(files(place.path()).len(), 1);
    pages.nic_closed(nic);
    pages.end();
    assert_eq!(files(place.path()).len(), 0);
}

#[test]
fn nothing_is_published_where_that_is_forbidden_or_impossible() {
    let Some(place) = place() else { return };
    let mut secure = settings(place.path().to_str().unwrap());
    secure.secure = true;
    let missing = place.path().join("no/such");
    for settings in [
        secure,
        settings("off"),
        settings("/proc"),
        settings(missing.to_str().unwrap()),
    ] {
        let pages = Pages::new(&settings);
        assert!(pages.file.is_none());
        pages.vi(4).0.posted(0, 1);
        assert_eq!(pages.vi(4).0.queues[0].posted.load(Ordering::Relaxed), 1);
        pages.end();
    }
    assert_eq!(read_dir(place.path()).unwrap().count(), 0);
}

#[test]
fn objects_beyond_the_tables_share_a_record() {
    let pages = Pages::new(&settings("off"));
    let far = pages.vi(VIS + 5).1;
    assert!(std::ptr::eq(far, pages.vi(VIS + 6).1));
    assert_eq!(pages.process().vis_left_out.get(), 2);
    pages.vi_destroyed(far);
    assert_eq!(pages.process().vis_left_out.get(), 1);
    assert!(!std::ptr::eq(far, pages.vi(VIS - 1).1));
    assert_eq!(pages.process().vi_bound.get(), VIS as u64);
}

/// What dead processes have left is bounded, and what is no file of theirs stays.
#[test]
fn the_latest_dead_processes_are_kept() {
    let Some(place) = place() else { return };
    let mut paths = Vec::new();
    for number in 0..12 {
        // Without the lock, and with a start that no process has: dead.
        let path = place.path().join(folder::file_name(1, number));
        let mut content = vec![0; 4096];
        let words = [
            layout::MAGIC,
            layout::LAYOUT,
            BYTES as u64,
            1,
            life::namespace(),
            1,
        ];
        for (word, bytes) in words.iter().zip(content.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        let clock = std::mem::offset_of!(layout::Process, clock);
        content[clock..clock + 8].copy_from_slice(&(100 + number).to_ne_bytes());
        std::fs::write(&path, &content).unwrap();
        paths.push(path);
    }
    let victim = place.path().join("victim");
    std::fs::write(&victim, "x").unwrap();
    let planted = place.path().join(folder::file_name(1, 99));
    symlink(&victim, &planted).unwrap();
    let new = place.path().join(folder::file_name(1, 98));
    std::fs::write(&new, "").unwrap();
    let pages = pages_in(place.path());
    for (number, path) in paths.iter().enumerate() {
        assert_eq!(path.exists(), number >= 4, "{number}");
    }
    assert!(victim.exists() && planted.is_symlink() && new.exists());
    assert!(pages.file.is_some());
    assert!(read::head(&File::open(&paths[11]).unwrap()).is_ok());
}

/// A process whose file has no memory from this place on, and its file, which has room again.
fn full_from(place: &Path, end: usize, fill: impl FnOnce(&Pages)) -> (Pages, File) {
    let pages = pages_in(place);
    let path = files(place).remove(0);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.set_len(end as u64).unwrap();
    fill(&pages);
    file.set_len(BYTES as u64).unwrap();
    (pages, file)
}

/// The file system is full, or the file has been cut short: the process goes on, and the file says what is not seen.
#[test]
fn a_page_that_cannot_be_had_is_replaced() {
    if !vipl_guard::CATCHES {
        return;
    }
    let Some(place) = place() else { return };
    let mut vis = Vec::new();
    let (pages, file) = full_from(place.path(), VIS_AT + 4096, |pages| {
        // Four VIs lie on a page.
        for handle in 0..6_usize {
            let (counts, vi) = pages.vi(handle);
            vi.handle.set(1 + handle as u64);
            counts.posted(1, 1);
            vi.happened(7, Happened::Created);
            assert_eq!(counts.queues[1].posted.load(Ordering::Relaxed), 1);
            assert_eq!(vi.events.get(), 1);
            vis.push(vi);
        }
        assert!(
            pages.sampled(0).is_none(),
            "a reader would take holes for it"
        );
    });
    let read = || Snapshot::read(&file).unwrap();
    let (process, seen) = (read().process, read().vis);
    assert_eq!((process.vis_left_out, process.pages_left_out), (2, 2));
    assert_eq!(
        seen.iter().map(|vi| vi.slot).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    pages.vi_destroyed(vis[4]);
    pages.vi_destroyed(vis[0]);
    let process = read().process;
    assert_eq!((process.vis_left_out, process.pages_left_out), (1, 2));
    assert!(pages.has_warned.load(Ordering::Relaxed));
}

/// A VI without its counters is not shown, since they would seem to be 0.
#[test]
fn a_vi_is_seen_with_its_counters_or_not_at_all() {
    if !vipl_guard::CATCHES {
        return;
    }
    let Some(place) = place() else { return };
    let (pages, file) = full_from(place.path(), COUNTS_AT, |pages| {
        // Counters of 64 VIs lie on a page.
        pages.vi(9).1.handle.set(10_u64);
    });
    // There is room again.
    pages.vi(10).1.handle.set(11_u64);
    pages.vi(64).1.handle.set(65_u64);
    let read = Snapshot::read(&file).unwrap();
    assert_eq!(read.vis.iter().map(|vi| vi.slot).collect::<Vec<_>>(), [64]);
    let about = &read.process;
    assert_eq!((about.vis_left_out, about.pages_left_out), (2, 1));
}

#[test]
fn a_child_has_memory_of_its_own_where_the_counters_are() {
    let Some(place) = place() else { return };
    let pages = pages_in(place.path());
    let counter = pages.counter("x.y").unwrap();
    counter.store(5, Ordering::Relaxed);
    // SAFETY: the child touches one word and ends.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let found = counter.fetch_add(1, Ordering::Relaxed);
            libc::_exit(i32::from(found != 0));
        }
        let mut status = -1;
        libc::waitpid(child, &raw mut status, 0);
        status
    };
    assert_eq!((status, counter.load(Ordering::Relaxed)), (0, 5));
}

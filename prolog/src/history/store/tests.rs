//! The file under everything that may happen to it: nothing of that is a failure of a check.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::{Arc, Barrier};

use diag::check::CheckName;
use diag::facts::Engine;
use diag::history::{Like, MOST_ENTRIES, Setting};
use diag::measurement::Metric;
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use super::*;

const WAIT: Duration = Duration::from_secs(20);

/// A state folder; below /var/lib, because a folder that others can change is refused. `None` for an ordinary user.
fn state() -> Option<TempDir> {
    let made = tempfile::Builder::new().prefix("aimaster-history-").tempdir_in("/var/lib");
    assert!(made.is_ok() || !rustix::process::geteuid().is_root());
    made.ok()
}

fn key(part: &str) -> Key {
    Key {
        engine: Engine::Cuda,
        check: CheckName::AllReduce1,
        metric: Metric::Busbw,
        bytes: Some(1 << 30),
        part: part.into(),
        like: Like { alone: Some(true), ranks: 8, nodes: 1, nvls: false },
    }
}

fn entry(job_id: u32) -> Entry {
    let at = Timestamp::UNIX_EPOCH + SignedDuration::from_mins(i64::from(job_id));
    Entry { at, job_id, value: 1.5, with: Some("n2".into()), setting: Setting::default() }
}

fn jobs(kept: &Kept, part: &str) -> Vec<u32> {
    kept.get(&key(part)).map(|series| series.iter().map(|one| one.job_id).collect()).unwrap_or_default()
}

fn read(folder: &Path) -> Kept {
    super::read(folder, WAIT).unwrap()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn what_was_added_is_read_back_and_only_root_sees_it() {
    let Some(state) = state() else { return };
    let folder = folder(&state.path().join("deep/er"), "n1");
    assert_eq!(read(&folder), Kept::new());
    assert!(!folder.exists(), "reading makes nothing");
    for job in 1..=3 {
        add(&folder, &[(key("GPU-a"), entry(job)), (key("GPU-b"), entry(job))], WAIT).unwrap();
    }
    let kept = read(&folder);
    assert_eq!((jobs(&kept, "GPU-a"), kept[&key("GPU-b")][2].clone()), (vec![1, 2, 3], entry(3)));
    assert_eq!((mode(&folder), mode(&folder.join(FILE))), (0o700, 0o600));
}

#[test]
fn jobs_that_start_at_once_lose_nothing() {
    let Some(state) = state() else { return };
    let (folder, start) = (folder(state.path(), "n1"), Arc::new(Barrier::new(8)));
    let jobs_at_once: Vec<_> = (1..=8)
        .map(|job| {
            let (folder, start) = (folder.clone(), Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                add(&folder, &[(key("GPU-a"), entry(job))], WAIT).unwrap();
                read(&folder)
            })
        })
        .collect();
    for one in jobs_at_once {
        assert!(!one.join().unwrap().is_empty());
    }
    assert_eq!(jobs(&read(&folder), "GPU-a"), (1..=8).collect::<Vec<_>>());
}

#[test]
fn a_file_in_use_is_waited_for_and_no_longer() {
    let Some(state) = state() else { return };
    let folder = folder(state.path(), "n1");
    add(&folder, &[(key("GPU-a"), entry(1))], WAIT).unwrap();
    let held = Folder::open(&folder, WAIT).unwrap();
    let short = Duration::from_millis(50);
    let error = add(&folder, &[(key("GPU-a"), entry(2))], short).unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }) && error.to_string().contains("50 ms"), "{error}");
    assert!(matches!(super::read(&folder, short), Err(StoreError::Busy { .. })));
    drop(held);
    add(&folder, &[(key("GPU-a"), entry(3))], WAIT).unwrap();
    assert_eq!(jobs(&read(&folder), "GPU-a"), [1, 3]);
}

/// Puts `text` where the file is, and wants it out of the way at the next use, which works.
fn assert_set_aside(text: &[u8], by_reading: bool) {
    let Some(state) = state() else { return };
    let folder = folder(state.path(), "n1");
    make(&folder).unwrap();
    std::fs::write(folder.join(FILE), text).unwrap();
    if by_reading {
        let error = super::read(&folder, WAIT).unwrap_err();
        assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
        assert_eq!(std::fs::read(folder.join(ASIDE)).unwrap(), text);
    }
    let added = add(&folder, &[(key("GPU-a"), entry(1))], WAIT);
    assert_eq!(added.is_err(), !by_reading, "{added:?}");
    assert_eq!(jobs(&read(&folder), "GPU-a"), [1]);
    assert_eq!(std::fs::read(folder.join(ASIDE)).unwrap(), text);
}

#[test]
fn garbage_is_set_aside_once_and_the_next_job_begins_anew() {
    for by_reading in [true, false] {
        assert_set_aside(b"no store\n", by_reading);
        assert_set_aside(&[0xff; 100_000], by_reading);
        assert_set_aside(b"redb", by_reading);
    }
}

#[test]
fn what_is_no_file_of_ours_is_set_aside() {
    let Some(state) = state() else { return };
    let folder = folder(state.path(), "n1");
    make(&folder).unwrap();
    let victim = state.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    for round in 0..3 {
        let path = folder.join(FILE);
        match round {
            0 => symlink(&victim, &path).unwrap(),
            1 => std::fs::create_dir(&path).unwrap(),
            _ => File::create(&path).unwrap().set_len(MOST_FILE_BYTES + 1).unwrap(),
        }
        assert!(matches!(super::read(&folder, WAIT), Err(StoreError::Foreign { .. })), "{round}");
        assert!(!path.exists(), "{round}");
        // What is aside already gives way, unless it is a folder.
        _ = std::fs::remove_dir(folder.join(ASIDE));
    }
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn a_folder_that_others_can_change_is_not_used() {
    let Some(state) = state() else { return };
    std::fs::set_permissions(state.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let folder = folder(state.path(), "n1");
    let error = add(&folder, &[(key("GPU-a"), entry(1))], WAIT).unwrap_err();
    assert!(matches!(error, StoreError::Path(_)), "{error}");
    assert!(!folder.join(FILE).exists());
    std::fs::set_permissions(state.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::remove_dir(&folder).unwrap();
    symlink("/etc", &folder).unwrap();
    assert!(matches!(super::read(&folder, WAIT), Err(StoreError::Open { .. })));
}

/// Every byte of a small store is changed in turn, and it is cut at many places: it is read, or set aside, and the next
/// job's numbers are kept. What was read before is read right or not at all.
#[test]
fn no_damage_does_any_harm() {
    let Some(state) = state() else { return };
    let folder = folder(state.path(), "n1");
    for job in 1..=3 {
        add(&folder, &[(key("GPU-a"), entry(job))], WAIT).unwrap();
    }
    let whole = std::fs::read(folder.join(FILE)).unwrap();
    // Pages without content tell nothing new.
    let full = |at: &usize| whole[at & !511..].iter().take(512).any(|byte| *byte != 0);
    let flips = (0..whole.len()).step_by(211).filter(full).map(|at| {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        (format!("byte {at}"), damaged)
    });
    let cuts = (0..whole.len()).step_by(4096).map(|at| (format!("cut at {at}"), whole[..at].to_vec()));
    for (name, damaged) in flips.chain(cuts) {
        std::fs::write(folder.join(FILE), damaged).unwrap();
        let before = super::read(&folder, WAIT).unwrap_or_default();
        assert!(jobs(&before, "GPU-a").iter().all(|job| (1..=3).contains(job)), "{name}");
        _ = add(&folder, &[(key("GPU-a"), entry(4))], WAIT);
        assert!(jobs(&read(&folder), "GPU-a").contains(&4), "{name}");
    }
}

#[test]
fn a_store_is_bounded() {
    let Some(state) = state() else { return };
    let folder = folder(state.path(), "n1");
    let many: Vec<(Key, Entry)> = (0..1100).map(|part| (key(&format!("GPU-{part}")), entry(part))).collect();
    add(&folder, &many, WAIT).unwrap();
    let kept = read(&folder);
    assert_eq!(kept.len() as u64, MOST_SERIES);
    assert!(jobs(&kept, "GPU-75").is_empty() && jobs(&kept, "GPU-76") == [76], "the oldest are forgotten");
    for job in 0..100 {
        add(&folder, &[(key("GPU-9999"), entry(2000 + job))], WAIT).unwrap();
    }
    assert_eq!(jobs(&read(&folder), "GPU-9999").len(), MOST_ENTRIES);
    assert!(std::fs::metadata(folder.join(FILE)).unwrap().len() < MOST_FILE_BYTES / 2);
}

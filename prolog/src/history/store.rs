//! The file of a node's history, `<state_dir>/<node>/history.redb`: root's own, one process at a time, bounded. What is in
//! it is [`diag::history`]'s; a file that is no such store is set aside, and nothing here is worth failing a check for.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cluster::trusted_path::{self, PathError};
use diag::history::{self, Entry, Key};
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{
    Builder, Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend, Table,
    TableDefinition,
};
use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

/// The file.
pub const FILE: &str = "history.redb";

/// Where a file goes that is none of ours or is broken; the one before it there is replaced, so that there is one at most.
pub const ASIDE: &str = "history.redb.aside";

/// The table: series by their keys, both as JSON. Another form of either gets another name.
const SERIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("series 1");

/// Most series of a node: 8 GPUs and as many rails in all checks and sizes are about a hundred, for each way in which jobs
/// use the node (1, 2, 4, 8 GPUs, alone or not) again. Beyond it the one goes that was added to longest ago.
pub const MOST_SERIES: u64 = 1024;

/// Longest series, as JSON: 64 entries of some 200 bytes are 13 KB.
const MOST_SERIES_BYTES: usize = 64 << 10;

/// Largest file: 1024 full series and the copies that a transaction needs were 33 MiB.
const MOST_FILE_BYTES: u64 = 64 << 20;

/// Memory for pages of the file: a job touches about a hundred series.
const CACHE_BYTES: usize = 4 << 20;

/// Between two looks whether another job's prolog is done with the file; it needs some milliseconds.
const POLL: Duration = Duration::from_millis(10);

/// Series by key.
pub type Kept = BTreeMap<Key, Vec<Entry>>;

/// Why nothing was read or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder is somebody else's to change.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The folder or file can't be opened.
    #[error("{} can't be opened: {source}", .path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("{} was in use by another job's prolog for more than {} ms", .path.display(), .within.as_millis())]
    Busy {
        /// The folder.
        path: PathBuf,
        /// How long was waited.
        within: Duration,
    },
    /// The file is no store of ours, or is broken; it was set aside.
    #[error("{} was no history ({why}): {}", .path.display(), .became)]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// What became of it.
        became: String,
    },
    /// It can't be read or written now.
    #[error("{} can't be used: {source}", .path.display())]
    Use {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<redb::Error>,
    },
}

/// The folder of a node's state.
#[must_use]
pub fn folder(state_dir: &Path, node: &str) -> PathBuf {
    state_dir.join(node)
}

/// All that the node remembers; nothing where it has no history yet.
///
/// # Errors
/// It can't be read within `wait`. A file that is no store was set aside.
pub fn read(folder: &Path, wait: Duration) -> Result<Kept, StoreError> {
    let Some(opened) = Folder::open(folder, wait)? else { return Ok(Kept::new()) };
    let Some(file) = opened.file(OFlags::RDONLY)? else { return Ok(Kept::new()) };
    opened.guarded(|| read_all(file))
}

/// Adds a job's numbers, all or none of them.
///
/// # Errors
/// They were not added within `wait` for other jobs. A file that is no store was set aside, and they are in a new one then
/// unless that failed too.
pub fn add(folder: &Path, entries: &[(Key, Entry)], wait: Duration) -> Result<(), StoreError> {
    make(folder)?;
    let Some(opened) = Folder::open(folder, wait)? else { return Ok(()) };
    let once = || {
        let file = opened.file(OFlags::RDWR | OFlags::CREATE)?;
        file.map_or(Ok(()), |file| opened.guarded(|| add_all(file, entries)))
    };
    match once() {
        Err(foreign @ StoreError::Foreign { .. }) => once().and(Err(foreign)),
        done => done,
    }
}

/// Makes the folder, and those above it; its own is root's alone.
fn make(folder: &Path) -> Result<(), StoreError> {
    let refused = |source| StoreError::Open { path: folder.to_owned(), source };
    let above = folder.parent().unwrap_or(folder);
    DirBuilder::new().recursive(true).mode(0o755).create(above).map_err(refused)?;
    match mkdirat(CWD, folder, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(refused(errno.into())),
    }
}

/// The open folder, locked for this process.
struct Folder {
    path: PathBuf,
    folder: OwnedFd,
}

impl Folder {
    /// `None` where there is none.
    fn open(path: &Path, wait: Duration) -> Result<Option<Self>, StoreError> {
        let refused = |source: io::Error| StoreError::Open { path: path.to_owned(), source };
        // Whoever can change a folder above it could have put another one there.
        if !trusted_path::anything(path)? {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty()).map_err(|errno| refused(errno.into()))?;
        // The umask of whoever started slurmd does not count; on storage that can't be written to it stays as it is.
        _ = fchmod(&folder, Mode::RWXU);
        let until = Instant::now() + wait;
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { path: path.to_owned(), folder })),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < until => std::thread::sleep(POLL),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(StoreError::Busy { path: path.to_owned(), within: wait });
                }
                Err(errno) => return Err(refused(errno.into())),
            }
        }
    }

    /// The file; `None` where there is none.
    fn file(&self, flags: OFlags) -> Result<Option<File>, StoreError> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.folder, FILE, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno @ (Errno::LOOP | Errno::ISDIR | Errno::NXIO)) => {
                return Err(self.set_aside(&errno.to_string()));
            }
            Err(errno) => return Err(StoreError::Open { path: self.path.join(FILE), source: errno.into() }),
        };
        let refused = |source| StoreError::Open { path: self.path.join(FILE), source };
        let (about, owner) =
            (file.metadata().map_err(refused)?, fstat(&file).map_err(|errno| refused(errno.into()))?.st_uid);
        if !about.is_file() {
            return Err(self.set_aside("it is no plain file"));
        }
        if owner != rustix::process::geteuid().as_raw() {
            return Err(self.set_aside("it is somebody else's"));
        }
        if about.len() > MOST_FILE_BYTES {
            return Err(self.set_aside(&format!("it is larger than {} MiB", MOST_FILE_BYTES >> 20)));
        }
        Ok(Some(file))
    }

    /// Does something with the file's content, which may be anything: what is broken enough can make the reader panic.
    fn guarded<T>(&self, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StoreError> {
        match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) if is_foreign(&error) => Err(self.set_aside(&error.to_string())),
            Ok(Err(error)) => Err(StoreError::Use { path: self.path.join(FILE), source: Box::new(error) }),
            Err(_) => Err(self.set_aside("its content makes no sense")),
        }
    }

    /// Takes the file out of the way; what is to be said of it.
    fn set_aside(&self, why: &str) -> StoreError {
        // A folder is not replaced by a file, nor the other way round.
        _ = unlinkat(&self.folder, ASIDE, AtFlags::empty());
        let became = match renameat(&self.folder, FILE, &self.folder, ASIDE) {
            Ok(()) => format!("it is {ASIDE} now, and a new one begins"),
            Err(errno) => format!("it can't be set aside either: {errno}"),
        };
        StoreError::Foreign { path: self.path.join(FILE), why: why.to_owned(), became }
    }
}

/// Whether an error says that the file is no store of ours, or a broken one, and not that the disk has trouble.
fn is_foreign(error: &redb::Error) -> bool {
    match error {
        redb::Error::Io(cause) => {
            // The last: beyond the end of a copy in memory, or of what a file can have.
            let kinds =
                [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidInput];
            kinds.contains(&cause.kind())
        }
        redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TypeDefinitionChanged { .. }
        | redb::Error::TableIsMultimap(_) => true,
        _ => false,
    }
}

/// The whole file is checked before anything in it is followed: where a damaged page says that the next one has
/// gigabytes, so many would be read.
fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    builder
}

/// Reads a copy, because the check writes.
fn read_all(file: File) -> Result<Kept, redb::Error> {
    let mut bytes = Vec::new();
    file.take(MOST_FILE_BYTES).read_to_end(&mut bytes)?;
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64)?;
    StorageBackend::write(&copy, 0, &bytes)?;
    drop(bytes);
    let store = builder().create_with_backend(copy)?;
    let table = match store.begin_read()?.open_table(SERIES) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Kept::new()),
        Err(error) => return Err(error.into()),
    };
    let mut kept = Kept::new();
    for one in table.iter()?.take(usize::try_from(MOST_SERIES).unwrap_or(usize::MAX)) {
        let (key, value) = one?;
        if let (Ok(key), Some(series)) = (serde_json::from_str(key.value()), series(value.value())) {
            kept.insert(key, series);
        }
    }
    Ok(kept)
}

/// A series as it is kept; `None`: it is none, or longer than any.
fn series(json: &[u8]) -> Option<Vec<Entry>> {
    Some(json)
        .filter(|json| json.len() <= MOST_SERIES_BYTES)
        .and_then(|json| serde_json::from_slice(json).ok())
}

fn add_all(file: File, entries: &[(Key, Entry)]) -> Result<(), redb::Error> {
    let store = builder().create_with_backend(FileBackend::new(file)?)?;
    let transaction = store.begin_write()?;
    {
        let mut table = transaction.open_table(SERIES)?;
        for (key, entry) in entries {
            let (Ok(key), entry) = (serde_json::to_string(key), entry.clone()) else { continue };
            let mut series =
                table.get(key.as_str())?.and_then(|value| series(value.value())).unwrap_or_default();
            history::add(&mut series, entry);
            let Ok(json) = serde_json::to_vec(&series) else { continue };
            if json.len() <= MOST_SERIES_BYTES {
                table.insert(key.as_str(), json.as_slice())?;
            }
        }
        forget(&mut table)?;
    }
    transaction.commit()?;
    Ok(store.close()?)
}

/// Removes the series that were added to longest ago, if there are too many.
fn forget(table: &mut Table<'_, &'static str, &'static [u8]>) -> Result<(), redb::Error> {
    let most = usize::try_from(MOST_SERIES).unwrap_or(usize::MAX);
    if table.len()? <= MOST_SERIES {
        return Ok(());
    }
    let mut ages = Vec::new();
    for one in table.iter()? {
        let (key, value) = one?;
        let last = series(value.value()).and_then(|series| series.last().map(|entry| entry.at));
        ages.push((last, key.value().to_owned()));
    }
    // The youngest first; what can't be read is older than everything.
    ages.sort_unstable_by(|one, other| other.cmp(one));
    for (_, key) in ages.iter().skip(most) {
        table.remove(key.as_str())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

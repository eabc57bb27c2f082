//! [`Contributions`]: what this node has added to windows that are open, in files, to add it again if the store loses it. A
//! file belongs to one window and one process. It consists of records: a header (`node/files.rs`), and then the partition, the
//! epoch minute and the frames, encoded with postcard. A torn record ends a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::diagnosis::LossCause;
use crate::event::{Minute, Partitions, Rollup};
use crate::node::files::{self, HEADER, header};
use crate::node::{Throttle, lock};
use crate::store::Bucket;

const EXTENSION: &str = "window";
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A minute of a partition, and the frames that were added to a window.
pub(super) type Contribution = (Bucket, Vec<Vec<u8>>);

/// The encoded form of a contribution: the index of the partition, the epoch minute and the frames.
type Encoded<F> = (u16, i64, F);

#[derive(Debug)]
pub(super) struct Contributions {
    directory: PathBuf,
    bytes_max: u64,
    partitions: Partitions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bytes: u64,
    windows: BTreeMap<Bucket, Window>,
    throttle: Throttle,
}

/// The files of a window.
#[derive(Debug, Default)]
struct Window {
    paths: Vec<PathBuf>,
    bytes: u64,
    /// The file of this process.
    own: Option<File>,
}

impl Contributions {
    /// Opens the directory, and deletes the files of rollups or partitions that are no longer configured.
    pub(super) fn open(
        directory: PathBuf,
        bytes_max: u64,
        partitions: &Partitions,
    ) -> io::Result<Self> {
        files::open_directory(&directory)?;
        let names: BTreeMap<_, _> = (partitions.rollups())
            .map(|(partition, rollup)| (name_of(rollup, partitions), partition))
            .collect();
        let (mut windows, mut bytes) = (BTreeMap::<_, Window>::new(), 0);
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let path = entry.path();
            let is_ours = path.extension().is_some_and(|extension| extension == EXTENSION);
            let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let mut parts = name.split('.');
            let partition = parts.next().and_then(|name| names.get(name));
            let minute = parts.next().and_then(|minute| minute.parse().ok());
            let minute = minute.and_then(Minute::from_epoch_minutes);
            match partition.zip(minute) {
                Some((&partition, minute)) if is_ours => {
                    let window = windows.entry(Bucket { partition, minute }).or_default();
                    let size = entry.metadata()?.len();
                    bytes += size;
                    window.bytes += size;
                    window.paths.push(path);
                }
                _ if is_ours => fs::remove_file(path)?,
                _ => {}
            }
        }
        let state = State { bytes, windows, throttle: Throttle::new(LOG_INTERVAL) };
        Ok(Self { directory, bytes_max, partitions: partitions.clone(), state: Mutex::new(state) })
    }

    /// Keeps a contribution until its window is sealed. If that fails, a loss of data in the store would be final, so it is
    /// logged. Blocks on the disk.
    pub(super) fn keep(&self, window: Bucket, source: Bucket, frames: &[Vec<u8>]) {
        let mut state = lock(&self.state);
        if let Err(error) = self.append(&mut state, window, source, frames)
            && state.throttle.is_due()
        {
            tracing::error!(
                directory = %self.directory.display(),
                %error,
                "cannot keep what is added to windows; if Redis loses it, their points have complete=false; {}",
                LossCause::SpoolFailed.remedy()
            );
        }
    }

    fn append(
        &self,
        state: &mut State,
        window: Bucket,
        source: Bucket,
        frames: &[Vec<u8>],
    ) -> io::Result<()> {
        let Some(rollup) = self.partitions.rollup(window.partition) else {
            return Ok(());
        };
        let index = u16::try_from(source.partition.index()).map_err(io::Error::other)?;
        let record: Encoded<_> = (index, source.minute.epoch_minutes(), frames);
        let mut bytes = postcard::to_extend(&record, vec![0; HEADER]).map_err(io::Error::other)?;
        let start = header(&bytes[HEADER..]);
        bytes[..HEADER].copy_from_slice(&start.ok_or_else(|| io::Error::other("too large"))?);
        if state.bytes + bytes.len() as u64 > self.bytes_max {
            return Err(io::Error::other(format!(
                "the {} bytes of input.spool_max are used",
                self.bytes_max
            )));
        }
        let files = state.windows.entry(window).or_default();
        let file = match &mut files.own {
            Some(file) => file,
            own => {
                let [name, minute] =
                    [name_of(rollup, &self.partitions), window.minute.epoch_minutes().to_string()];
                let path = format!("{name}.{minute}.{:016x}.{EXTENSION}", rand::random::<u64>());
                let path = self.directory.join(path);
                let file = files::create(&path)?;
                files.paths.push(path);
                own.insert(file)
            }
        };
        let written = file.write_all(&bytes).and_then(|()| file.sync_data());
        if written.is_err() {
            // The next contribution begins a new file, because a torn record ends this one.
            files.own = None;
        }
        files.bytes += bytes.len() as u64;
        state.bytes += bytes.len() as u64;
        written
    }

    /// Returns the windows that something is kept for.
    pub(super) fn windows(&self) -> Vec<Bucket> {
        lock(&self.state).windows.keys().copied().collect()
    }

    /// Returns the contributions to a window.
    pub(super) fn of(&self, window: Bucket) -> Records {
        let state = lock(&self.state);
        let paths = state.windows.get(&window).map(|files| files.paths.clone());
        let partitions = self.partitions.clone();
        Records { partitions, paths: paths.unwrap_or_default(), file: None }
    }

    /// Deletes the contributions to a window that is sealed.
    pub(super) fn forget(&self, window: Bucket) {
        let mut state = lock(&self.state);
        let Some(files) = state.windows.remove(&window) else {
            return;
        };
        state.bytes -= files.bytes;
        for path in files.paths {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(%error, path = %path.display(), "cannot delete what was added to a sealed window");
            }
        }
    }
}

/// Returns the part of file names that identifies a rollup, as long as the partitions have the same numbers.
fn name_of(rollup: &Rollup, partitions: &Partitions) -> String {
    let (count, before) = (partitions.count(), partitions.before());
    format!("{:016x}", xxh3_64(format!("{rollup} {count} {before:?}").as_bytes()))
}

/// Reads the contributions to a window, one at a time. Blocks on the disk.
#[derive(Debug)]
pub(super) struct Records {
    partitions: Partitions,
    paths: Vec<PathBuf>,
    file: Option<BufReader<File>>,
}

impl Records {
    /// Returns the next contribution.
    pub(super) fn next(&mut self) -> Option<Contribution> {
        loop {
            if let Some(file) = &mut self.file
                && let Some((index, minute, frames)) = read(file)
            {
                let partition = self.partitions.iter().nth(index.into());
                if let Some((partition, minute)) = partition.zip(Minute::from_epoch_minutes(minute))
                {
                    return Some((Bucket { partition, minute }, frames));
                }
            } else {
                self.file = open(&self.paths.pop()?);
            }
        }
    }
}

fn open(path: &Path) -> Option<BufReader<File>> {
    let opened = files::open_to_read(path).inspect_err(|error| {
        tracing::error!(%error, "cannot read what was added to a window");
    });
    opened.ok().map(BufReader::new)
}

/// Returns the next intact record.
fn read(file: &mut BufReader<File>) -> Option<Encoded<Vec<Vec<u8>>>> {
    let mut start = [0; HEADER];
    file.read_exact(&mut start).ok()?;
    let &[a, b, c, d, ..] = &start;
    let len = u32::from_le_bytes([a, b, c, d]);
    let mut payload = Vec::new();
    file.take(len.into()).read_to_end(&mut payload).ok()?;
    (header(&payload) == Some(start)).then(|| postcard::from_bytes(&payload).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::{Every, RollupLimits, Tags};

    fn partitions(every: i64) -> Partitions {
        Partitions::new(NonZeroU16::new(2).unwrap()).with_rollups(vec![Rollup {
            name: "r".to_owned(),
            every: Every::Minutes(every),
            tags: Tags::All,
            keep: Vec::new(),
            drop: Vec::new(),
            limits: RollupLimits { users_max: 9, groups_max: 9, bytes_max: 9 },
            suffix: "_r".into(),
        }])
    }

    fn bucket(partitions: &Partitions, index: usize, minute: i64) -> Bucket {
        let partition = partitions.all().nth(index).unwrap();
        Bucket { partition, minute: Minute::from_epoch_minutes(minute).unwrap() }
    }

    fn read_all(kept: &Contributions, window: Bucket) -> Vec<Contribution> {
        let mut records = kept.of(window);
        std::iter::from_fn(|| records.next()).collect()
    }

    #[test]
    fn contributions_survive_the_process_until_their_window_is_sealed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, partitions) = (directory.path().join("windows"), partitions(60));
        let open = || Contributions::open(path.clone(), 10_000, &partitions).unwrap();
        let window = bucket(&partitions, 2, 59);
        let [first, second] = [0, 1].map(|index| {
            (bucket(&partitions, index, 7), vec![vec![1, 2], vec![u8::try_from(index).unwrap(); 3]])
        });
        open().keep(window, first.0, &first.1);
        let kept = open();
        kept.keep(window, second.0, &second.1);
        kept.keep(bucket(&partitions, 2, 119), second.0, &[]);
        assert_eq!(read_all(&kept, window), [second.clone(), first.clone()]);
        // A crash may tear the last record.
        let newest = lock(&kept.state).windows[&window].paths[1].clone();
        let len = fs::metadata(&newest).unwrap().len();
        OpenOptions::new().write(true).open(&newest).unwrap().set_len(len - 1).unwrap();
        let kept = open();
        assert_eq!(read_all(&kept, window), [first]);
        kept.keep(window, second.0, &second.1);
        assert_eq!(read_all(&kept, window).len(), 2);
        kept.forget(window);
        assert_eq!(read_all(&open(), window), []);
        assert_eq!(open().windows(), [bucket(&partitions, 2, 119)]);
    }

    #[test]
    fn files_of_other_rollups_are_deleted_and_the_size_is_limited() {
        let directory = tempfile::tempdir().unwrap();
        let (path, hourly) = (directory.path().join("windows"), partitions(60));
        let open = |partitions| Contributions::open(path.clone(), 100, partitions).unwrap();
        let kept = open(&hourly);
        let (window, source) = (bucket(&hourly, 2, 59), bucket(&hourly, 0, 7));
        kept.keep(window, source, &[vec![0; 60]]);
        kept.keep(window, source, &[vec![0; 60]]);
        assert_eq!(read_all(&kept, window).len(), 1);
        assert_eq!(open(&partitions(120)).windows(), []);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    }
}

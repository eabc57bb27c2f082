//! [`Chunks`]: reads a file, plain or compressed, in chunks of whole lines.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use crate::event::datagram::first_line;

/// The size of a chunk, in bytes.
const CHUNK_BYTES: usize = 1 << 20;
/// The maximum length of a line, in bytes. A longer line is an error, since it is not a line of text.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Why counting failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("cannot open {}: {}", .0.display(), .1)]
    Open(PathBuf, #[source] io::Error),
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, #[source] io::Error),
    #[error("{} has a line of more than 64 MiB; it is not a file of line protocol", .0.display())]
    LongLine(PathBuf),
    #[error("cannot use a temporary file (--temp-dir): {0}")]
    Temporary(#[source] io::Error),
}

pub(super) struct Chunks {
    path: PathBuf,
    reader: Box<dyn Read>,
    /// The number of bytes read from the file since the last report.
    read: Rc<Cell<u64>>,
    /// The beginning of a line whose end has not been read.
    rest: Vec<u8>,
    is_at_end: bool,
}

/// Counts the bytes that are read.
struct Counting<R>(R, Rc<Cell<u64>>);

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(buffer)?;
        self.1.set(self.1.get() + read as u64);
        Ok(read)
    }
}

impl Chunks {
    /// Opens a file, or standard input for `-`. Its first bytes show how it is compressed.
    pub(super) fn open(path: &Path) -> Result<Self, InputError> {
        let wrong = |error| InputError::Open(path.to_owned(), error);
        let file: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(wrong)?)
        };
        let read = Rc::new(Cell::new(0));
        let mut file = Counting(file, Rc::clone(&read));
        let mut magic = Vec::new();
        file.by_ref().take(4).read_to_end(&mut magic).map_err(wrong)?;
        let all = io::Cursor::new(magic.clone()).chain(file);
        let reader: Box<dyn Read> = match magic[..] {
            [0x1f, 0x8b, ..] => {
                Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK_BYTES, all)))
            }
            [0x28, 0xb5, 0x2f, 0xfd] => {
                let decoder = StreamingDecoder::new(BufReader::with_capacity(CHUNK_BYTES, all));
                Box::new(decoder.map_err(|error| wrong(io::Error::other(error)))?)
            }
            _ => Box::new(all),
        };
        Ok(Self { path: path.to_owned(), reader, read, rest: Vec::new(), is_at_end: false })
    }

    /// Returns the next lines, or `None` at the end. Calls `read` with the number of bytes that were read for them.
    pub(super) fn next(&mut self, read: impl Fn(u64)) -> Result<Option<Vec<u8>>, InputError> {
        let mut chunk = std::mem::take(&mut self.rest);
        while !self.is_at_end {
            let before = chunk.len();
            let wanted =
                (CHUNK_BYTES as u64).saturating_sub(before as u64).max(CHUNK_BYTES as u64 / 4);
            let more = self.reader.by_ref().take(wanted).read_to_end(&mut chunk);
            let more = more.map_err(|error| InputError::Read(self.path.clone(), error))?;
            read(self.read.take());
            self.is_at_end = more == 0;
            if let Some(end) = last_line_end(&chunk).filter(|_| !self.is_at_end) {
                self.rest = chunk.split_off(end);
                return Ok(Some(chunk));
            }
            if chunk.len() > LINE_BYTES_MAX {
                return Err(InputError::LongLine(self.path.clone()));
            }
        }
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}

/// Returns where the last complete line ends, after its newline.
fn last_line_end(chunk: &[u8]) -> Option<usize> {
    if memchr::memchr(b'"', chunk).is_none() {
        return memchr::memrchr(b'\n', chunk).map(|newline| newline + 1);
    }
    // A newline may be inside a quoted field, so the lines are found from the beginning.
    let mut end = 0;
    while let Some(line) = first_line(&chunk[end..]) {
        end += line + 1;
    }
    (end > 0).then_some(end)
}

//! Lines to a [`Write`]: standard output for a first try and for pipes, a buffer in tests.
//!
//! Owns its writer. Each call of [`Output::write`] is one locked write and a flush, so lines of concurrent
//! batches never mix. A reader that stalls holds back only the blocking thread that writes to it; that thread
//! cannot be stopped, so a process that ends should not wait for it without limit.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::line_protocol::body;
use super::{Output, SealedCounts, WriteError};

/// An output of line protocol to any writer.
pub struct Lines<W> {
    writer: Arc<Mutex<W>>,
    name: &'static str,
}

impl Lines<io::Stdout> {
    /// Lines to the standard output of this process.
    #[must_use]
    pub fn stdout() -> Self {
        Self::new(io::stdout(), "standard output")
    }
}

impl<W> Lines<W> {
    /// Lines to this writer, which logs know by this name.
    pub fn new(writer: W, name: &'static str) -> Self {
        Self { writer: Arc::new(Mutex::new(writer)), name }
    }

    fn unavailable(&self, reason: &dyn fmt::Display) -> WriteError {
        WriteError::unavailable(format!("{}: {reason}", self.name))
    }
}

impl<W> fmt::Debug for Lines<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl<W: Write + Send + 'static> Output for Lines<W> {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        let lines = body(counts)?;
        let writer = Arc::clone(&self.writer);
        tokio::task::spawn_blocking(move || {
            // A writer that panicked once may be tried again: a batch is written from its start.
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write_all(lines.as_bytes())?;
            writer.flush()
        })
        .await
        .map_err(|error| self.unavailable(&error))?
        .map_err(|error: io::Error| self.unavailable(&error))
    }

    fn describe(&self) -> String {
        self.name.to_owned()
    }

    fn has_server(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Minute;

    /// A buffer that counts flushes, or a pipe whose reader is gone.
    #[derive(Debug, Default)]
    struct Pipe {
        bytes: Vec<u8>,
        flushed: usize,
        closed: bool,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.bytes.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            self.flushed += 1;
            Ok(())
        }
    }

    fn counts(series: &str) -> SealedCounts {
        SealedCounts {
            minute: Minute::of_nanos(0),
            series: series.to_owned(),
            unique: 1,
            cumulative: 2,
        }
    }

    #[tokio::test]
    async fn a_batch_is_written_and_flushed_at_once() {
        let output = Lines::new(Pipe::default(), "pipe");
        output.write(&[counts("a=1"), counts("a=3")]).await.unwrap();
        let forged = output.write(&[counts("a=1"), counts("a=2\n")]).await;
        assert!(matches!(forged, Err(WriteError::Rejected(_))), "{forged:?}");
        let pipe = output.writer.lock().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&pipe.bytes),
            "unique_user_event,a=1 value=1 0\ncumulative_user_event,a=1 value=2 0\n\
             unique_user_event,a=3 value=1 0\ncumulative_user_event,a=3 value=2 0\n",
        );
        assert_eq!(pipe.flushed, 1);
    }

    #[tokio::test]
    async fn a_closed_pipe_is_unavailable() {
        let output = Lines::new(Pipe { closed: true, ..Pipe::default() }, "pipe");
        match output.write(&[counts("a=1")]).await.unwrap_err() {
            WriteError::Unavailable { found, retry_after: None } => {
                assert!(found.why.contains("pipe: "), "{found}");
            }
            other => panic!("{other:?}"),
        }
    }
}

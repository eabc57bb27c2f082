//! [`Lines`]: an output of line protocol to standard output, for a first try and for pipes.
//!
//! Each call of [`Output::write`] is one locked write and a flush, so lines of concurrent batches never mix. A reader that
//! stalls blocks only the blocking thread that writes to it. That thread cannot be stopped, so the end of the process must not
//! wait for it without a limit.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::line_protocol::body;
use super::{Output, SealedCounts, WriteError};

const NAME: &str = "standard output";

/// An output to a writer; only tests use another one than standard output.
pub(crate) struct Lines<W>(pub(crate) Arc<Mutex<W>>);

impl<W> fmt::Debug for Lines<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lines")
    }
}

#[async_trait]
impl<W: Write + Send + 'static> Output for Lines<W> {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        let lines = body(counts)?;
        let writer = Arc::clone(&self.0);
        let unavailable = |error: io::Error| WriteError::unavailable(format!("{NAME}: {error}"));
        tokio::task::spawn_blocking(move || {
            // After a panic the writer is usable: a batch is written from its start.
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write_all(lines.as_bytes())?;
            writer.flush()
        })
        .await
        .map_err(|error| unavailable(error.into()))?
        .map_err(unavailable)
    }

    fn describe(&self) -> String {
        NAME.to_owned()
    }

    fn has_server(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Minute, Partition};

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
            partition: Partition::default(),
            minute: Minute::of_nanos(0),
            series: series.to_owned(),
            unique: 1,
            cumulative: 2,
        }
    }

    #[tokio::test]
    async fn a_batch_is_written_and_flushed_at_once() {
        let output = Lines(Arc::new(Mutex::new(Pipe::default())));
        output.write(&[counts("a=1"), counts("a=3")]).await.unwrap();
        let forged = output.write(&[counts("a=1"), counts("a=2\n")]).await;
        assert!(matches!(forged, Err(WriteError::Rejected(_))), "{forged:?}");
        let pipe = output.0.lock().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&pipe.bytes),
            "unique_user_event,a=1 value=1 0\ncumulative_user_event,a=1 value=2 0\n\
             unique_user_event,a=3 value=1 0\ncumulative_user_event,a=3 value=2 0\n",
        );
        assert_eq!(pipe.flushed, 1);
    }

    #[tokio::test]
    async fn a_closed_pipe_is_unavailable() {
        let output = Lines(Arc::new(Mutex::new(Pipe { closed: true, ..Pipe::default() })));
        match output.write(&[counts("a=1")]).await.unwrap_err() {
            WriteError::Unavailable { found, retry_after: None } => {
                assert!(found.why.contains("standard output: "), "{found}");
            }
            other => panic!("{other:?}"),
        }
    }
}

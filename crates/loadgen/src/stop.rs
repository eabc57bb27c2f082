//! [`Stop`]: Ctrl-C and SIGTERM end the sending as the end of the lines does, with the summary and the expected counts of what
//! was sent. A second one ends the process at once. And [`Input`], whose reading a signal ends, too.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// How often a wait looks whether it is to end.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// What is read at once, in bytes.
const CHUNK_BYTES: usize = 64 * 1024;
/// The signals, and the exit codes that a shell gives to who is ended by them.
const SIGNALS: [(i32, u8); 2] = [(SIGINT, 130), (SIGTERM, 143)];

/// Whether to stop, and the exit code for it.
#[derive(Debug, Clone, Default)]
pub(super) struct Stop(Arc<AtomicUsize>);

impl Stop {
    /// Listens for signals from now on.
    pub(super) fn by_signals() -> io::Result<Self> {
        let (stop, stopping) = (Self::default(), Arc::new(AtomicBool::new(false)));
        for (signal, code) in SIGNALS {
            // In this order: the first signal finds the flag down and raises it, the second finds it up.
            flag::register_conditional_shutdown(signal, code.into(), Arc::clone(&stopping))?;
            flag::register(signal, Arc::clone(&stopping))?;
            flag::register_usize(signal, Arc::clone(&stop.0), code.into())?;
        }
        Ok(stop)
    }

    /// The exit code to end with; `None`: go on.
    pub(super) fn code(&self) -> Option<u8> {
        let code = u8::try_from(self.0.load(Ordering::Acquire)).ok();
        code.filter(|code| *code != 0)
    }
}

/// What is read by a thread of its own, and ends when it is to stop: a read of a terminal or a pipe may never.
#[derive(Debug)]
pub(super) struct Input {
    chunks: Receiver<io::Result<Vec<u8>>>,
    chunk: Vec<u8>,
    taken: usize,
    stop: Stop,
}

impl Input {
    pub(super) fn new(mut input: impl Read + Send + 'static, stop: Stop) -> io::Result<Self> {
        let (sender, chunks) = sync_channel(1);
        std::thread::Builder::new().name("input".to_owned()).spawn(move || {
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                let read = match input.read(&mut chunk) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read,
                };
                let ends = !matches!(read, Ok(1..));
                let read = read.map(|bytes| {
                    chunk.truncate(bytes);
                    chunk
                });
                if sender.send(read).is_err() || ends {
                    return;
                }
            }
        })?;
        Ok(Self { chunks, chunk: Vec::new(), taken: 0, stop })
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.chunk.len() {
            match self.chunks.recv_timeout(LOOK_INTERVAL) {
                Ok(chunk) => (self.chunk, self.taken) = (chunk?, 0),
                Err(RecvTimeoutError::Timeout) if self.stop.code().is_none() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(0),
            }
        }
        let bytes = buffer.len().min(self.chunk.len() - self.taken);
        buffer[..bytes].copy_from_slice(&self.chunk[self.taken..self.taken + bytes]);
        self.taken += bytes;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_read_and_the_end_is_the_end() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|it| it.to_le_bytes()[0]).collect();
        let given = io::Cursor::new(bytes.clone());
        let mut input = Input::new(given, Stop::default()).unwrap();
        let mut read = Vec::new();
        input.read_to_end(&mut read).unwrap();
        assert_eq!(read, bytes);
        assert_eq!(input.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn who_is_to_stop_waits_for_nothing() {
        let (silent, _writer) = io::pipe().unwrap();
        let stop = Stop::default();
        let mut input = Input::new(silent, stop.clone()).unwrap();
        stop.0.store(130, Ordering::Release);
        assert_eq!(input.read(&mut [0]).unwrap(), 0);
        assert_eq!(stop.code(), Some(130));
    }
}

//! Records the log messages of the current thread, for tests.

use std::io;
use std::sync::{Arc, Mutex};

#[derive(Debug, Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// Records the log messages of this thread until the guard is dropped.
    pub fn start(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || log.clone());
        tracing::subscriber::set_default(subscriber.finish())
    }

    /// Returns how often this message has been logged.
    pub fn count(&self, message: &str) -> usize {
        let log = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        log.matches(message).count()
    }
}

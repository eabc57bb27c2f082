//! Tests the `tracing` events of locks and values.

use std::io::{self, Write};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use coordination::memory::MemoryArbiter;
use coordination::{Arbiter, ComputeOnce, ComputeSettings, Mutex, Name};
use tracing::Level;

use crate::site::PATIENCE;

#[derive(Clone, Default)]
struct Log(Arc<StdMutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Time(tokio::time::Instant);

impl coordination::memory::Clock for Time {
    fn now_us(&self) -> u64 {
        1 + u64::try_from(self.0.elapsed().as_micros()).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn each_step_is_traced_with_its_name() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false)
        .without_time()
        .with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let expect = |name: &str, messages: &[&str]| {
        let lines = String::from_utf8(std::mem::take(&mut *log.0.lock().unwrap())).unwrap();
        let lines: Vec<_> = lines.lines().collect();
        assert_eq!(lines.len(), messages.len(), "{lines:?}");
        for (line, message) in lines.iter().zip(messages) {
            assert!(line.contains(message) && line.contains(&format!("name=\"{name}\"")), "{line}");
        }
    };
    let time = Arc::new(Time(tokio::time::Instant::now()));
    let arbiter: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::new(time));
    let lock_ttl = Duration::from_millis(500);
    let settings = ComputeSettings { lock_ttl, ..ComputeSettings::default() };
    let once = ComputeOnce::new(Arc::clone(&arbiter), settings).unwrap();
    let value = |_| async { Ok::<_, String>(b"value".to_vec()) };
    once.get("a", PATIENCE, value).await.unwrap();
    expect("once:a", &["computing a value", "computed a value", "waited for a value"]);
    once.get("a", PATIENCE, value).await.unwrap();
    expect("once:a", &["found a value"]);
    let error = |_| async { Err::<Vec<u8>, _>("none") };
    once.get("b", PATIENCE, error).await.unwrap_err();
    expect("once:b", &["computing a value", "computation failed", "waited for a value"]);
    let never = |_| std::future::pending::<Result<Vec<u8>, String>>();
    once.get("c", lock_ttl, never).await.unwrap_err();
    expect("once:c", &["computing a value", "waited for a value"]);

    let mutex = Mutex::new(Arc::clone(&arbiter), "d", lock_ttl).unwrap();
    let guard = mutex.acquire(PATIENCE).await.unwrap();
    mutex.acquire(Duration::ZERO).await.unwrap_err();
    assert!(arbiter.invalidate(&Name::of_mutex("d").unwrap()).await.unwrap());
    guard.lost().cancelled().await;
    expect("mutex:d", &["acquired a lock", "did not acquire a lock", "lost a held lease"]);
}

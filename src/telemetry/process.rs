//! [`Process`]: process metrics from `/proc`, under the names that all Prometheus client libraries use.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use procfs::process::LimitValue;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::metric;

/// Collects the metrics of this process by reading `/proc` once per scrape.
#[derive(Debug)]
pub(super) struct Process {
    started: SystemTime,
}

impl Default for Process {
    /// Uses the current time as the start time, because systemd's `ProcSubset=pid` hides the boot time (`/proc/stat`).
    fn default() -> Self {
        Self { started: SystemTime::now() }
    }
}

/// Returns the soft limit on open files (`RLIMIT_NOFILE`), or `None` if it is unlimited or cannot be read.
#[must_use]
pub fn open_files_max() -> Option<u64> {
    let limits = procfs::process::Process::myself().and_then(|process| process.limits());
    match limits.ok()?.max_open_files.soft_limit {
        LimitValue::Value(most) => Some(most),
        LimitValue::Unlimited => None,
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = ConstGauge::new(started.as_secs_f64());
        let help = "Start time of the process, in seconds since the Unix epoch";
        metric(to, "process_start_time_seconds", help, &started)?;
        let process = procfs::process::Process::myself().ok();
        let stat = process.as_ref().and_then(|process| process.stat().ok());
        let files = process.and_then(|process| process.fd_count().ok()).map(|files| files as u64);
        if let Some(stat) = &stat {
            #[expect(
                clippy::cast_precision_loss,
                reason = "exact to hundredths of seconds for centuries"
            )]
            let cpu_seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
            let help = "Total user and system CPU time of the process, in seconds";
            metric(to, "process_cpu_seconds", help, &ConstCounter::new(cpu_seconds))?;
        }
        let stat = stat.as_ref();
        let resident = stat.map(|stat| stat.rss * procfs::page_size());
        let threads = stat.map(|stat| stat.num_threads.unsigned_abs());
        let virtual_bytes = stat.map(|stat| stat.vsize);
        for (name, help, value) in [
            ("max_fds", "Maximum number of open file descriptors", open_files_max()),
            ("open_fds", "Number of open file descriptors", files),
            ("resident_memory_bytes", "Resident memory size, in bytes", resident),
            ("virtual_memory_bytes", "Virtual memory size, in bytes", virtual_bytes),
            ("threads", "Number of threads", threads),
        ] {
            if let Some(value) = value {
                metric(to, &format!("process_{name}"), help, &ConstGauge::new(value))?;
            }
        }
        Ok(())
    }
}

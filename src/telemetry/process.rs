//! [`Process`]: what the kernel knows of this process, under the names that all Prometheus clients give it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use procfs::process::{LimitValue, Stat};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::one;

/// Reads `/proc` once a scrape.
#[derive(Debug)]
pub(super) struct Process {
    started: SystemTime,
}

impl Default for Process {
    /// Started just now. The kernel would say it in `/proc/stat`, which `ProcSubset=pid` hides.
    fn default() -> Self {
        Self { started: SystemTime::now() }
    }
}

/// `RLIMIT_NOFILE`; `None` when there is none, or it cannot be read.
#[must_use]
pub fn open_files_max() -> Option<u64> {
    let limits = procfs::process::Process::myself().and_then(|process| process.limits());
    match limits.ok()?.max_open_files.soft_limit {
        LimitValue::Value(most) => Some(most),
        LimitValue::Unlimited => None,
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let started = self.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let started = ConstGauge::new(started.as_secs_f64());
        let help = "When the process started, in seconds since the epoch";
        one(&mut encoder, "process_start_time_seconds", help, &started)?;
        let process = procfs::process::Process::myself().ok();
        let stat = process.as_ref().and_then(|process| process.stat().ok());
        let files = process.and_then(|process| process.fd_count().ok());
        if let Some(stat) = &stat {
            #[expect(clippy::cast_precision_loss, reason = "hundredths of seconds, of centuries")]
            let cpu_seconds = (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64;
            let help = "CPU time of the process, of user and system";
            one(&mut encoder, "process_cpu_seconds", help, &ConstCounter::new(cpu_seconds))?;
        }
        let of_stat = |part: fn(&Stat) -> u64| stat.as_ref().map(part);
        for (name, help, value) in [
            ("max_fds", "The most files that the process may have open", open_files_max()),
            ("open_fds", "Files that the process has open", files.map(|files| files as u64)),
            (
                "resident_memory_bytes",
                "Memory of the process that is in RAM",
                of_stat(|stat| stat.rss * procfs::page_size()),
            ),
            (
                "virtual_memory_bytes",
                "Addresses that the process has taken",
                of_stat(|stat| stat.vsize),
            ),
            ("threads", "Threads of the process", of_stat(|stat| stat.num_threads.unsigned_abs())),
        ] {
            // What cannot be read now is left out.
            if let Some(value) = value {
                let name = format!("process_{name}");
                one(&mut encoder, &name, help, &ConstGauge::new(value))?;
            }
        }
        Ok(())
    }
}

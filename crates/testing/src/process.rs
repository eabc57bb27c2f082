//! Signals and memory of a process, by its id.

use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::eventually::eventually;

/// Sends a signal, named as `kill` names it: `TERM`, `KILL`, `STOP`, `CONT`, `HUP`.
pub fn signal(pid: u32, name: &str) {
    // The library call would need `unsafe` here.
    let status = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status()
        .expect("the command `kill` is installed");
    assert!(status.success(), "kill -{name} {pid}: {status}");
}

/// Waits until the process ends.
pub fn wait(child: &mut Child, within: Duration) -> ExitStatus {
    let pid = child.id();
    eventually("the process ends", within, || {
        child.try_wait().expect("a child can be waited for").ok_or(format!("{pid} runs"))
    })
}

/// The memory of a process that is in RAM, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

/// Returns the most memory of a process that was ever in RAM, in KiB.
pub fn peak_kib(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:")
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse().expect("a number of kB")
}

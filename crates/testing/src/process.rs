//! Sends signals to processes, waits for their exit and measures their memory.

use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use crate::eventually::eventually;

/// Sends a signal to a process. The name is one that `kill` knows, such as `TERM`, `KILL`, `STOP`, `CONT` or `HUP`.
pub fn signal(pid: u32, name: &str) {
    // Runs a command because the library function would require `unsafe`.
    let status = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status()
        .expect("the command `kill` is installed");
    assert!(status.success(), "kill -{name} {pid}: {status}");
}

/// Waits until the process exits, and returns its status. Panics if the process is still running after `within`.
pub fn wait(child: &mut Child, within: Duration) -> ExitStatus {
    let pid = child.id();
    eventually("the process exits", within, || {
        child
            .try_wait()
            .expect("a child can be waited for")
            .ok_or(format!("{pid} is still running"))
    })
}

/// Returns the current resident memory of a process, in KiB.
pub fn resident_kib(pid: u32) -> u64 {
    status_kib(pid, "VmRSS:")
}

/// Returns the peak resident memory of a process so far, in KiB.
pub fn peak_kib(pid: u32) -> u64 {
    status_kib(pid, "VmHWM:")
}

fn status_kib(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is running");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .expect("the status has this field");
    line.trim().trim_end_matches(" kB").parse().expect("the field is a number of kB")
}

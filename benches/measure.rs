//! CPU clocks, medians, and side-by-side measurements.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::report::{Column, Report, Table, column};

/// The number of clock ticks per second. `/proc/<pid>/stat` reports CPU time in clock ticks. The number is the same on all
/// architectures that Rust's std supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// One of the compared alternatives. `run` measures the alternative once and returns the values in column order.
pub(crate) struct Way<'a> {
    pub(crate) name: &'a str,
    pub(crate) run: Box<dyn FnMut() -> anyhow::Result<Vec<f64>> + 'a>,
}

/// Runs `measure` on one CPU, with all processes that it starts. On several, processes that run at the same time slow each
/// other down, as they would not on hosts of their own.
pub(crate) fn on_one_cpu(measure: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let [_, last] = divided_cpus()?;
    on_cpus(&last, measure)
}

/// Returns all CPUs but the last, and the last; twice the same if there is only one.
pub(crate) fn divided_cpus() -> anyhow::Result<[CpuSet; 2]> {
    let all = sched_getaffinity(None)?;
    let (mut others, mut last) = (all, CpuSet::new());
    if let Some(cpu) = (0..CpuSet::MAX_CPU).rev().find(|cpu| all.is_set(*cpu)) {
        last.set(cpu);
        others.unset(cpu);
    }
    Ok(if others.count() == 0 { [last; 2] } else { [others, last] })
}

/// Runs `measure` on these CPUs, with all processes that it starts.
pub(crate) fn on_cpus<T>(
    cpus: &CpuSet,
    measure: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let before = sched_getaffinity(None)?;
    sched_setaffinity(None, cpus)?;
    let measured = measure();
    sched_setaffinity(None, &before)?;
    measured
}

/// Runs the alternatives in turn, `rounds` times, and adds a table of the medians to the report. The first column is the
/// ratio of each alternative's first figure to that of the first alternative, as the median over the rounds. Documents refer
/// to the table by `id`.
pub(crate) fn side_by_side(
    report: &mut Report,
    id: &str,
    title: &str,
    rounds: usize,
    columns: &[Column],
    ways: &mut [Way<'_>],
) -> anyhow::Result<Table> {
    let rounds = if report.is_quick() { 1 } else { rounds };
    let mut figures: Vec<Vec<Vec<f64>>> = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        // Each round begins with another alternative, because what runs before affects a measurement.
        for turn in 0..ways.len() {
            let at = (round + turn) % ways.len();
            let way = &mut ways[at];
            figures[at].push((way.run)().with_context(|| way.name.to_owned())?);
        }
    }
    let title = match rounds {
        1 => format!("{title} (one round)"),
        _ => format!("{title} (medians of {rounds} rounds)"),
    };
    let mut table = Table::new(id, &title, &[&[column("ratio", 2)], columns].concat());
    for (way, rounds) in ways.iter().zip(&figures) {
        let firsts = rounds.iter().zip(&figures[0]);
        let ratio = median(firsts.map(|(own, first)| own[0] / first[0]));
        let medians = (0..columns.len()).map(|at| median(rounds.iter().map(|run| run[at])));
        table.row(way.name, std::iter::once(ratio).chain(medians));
    }
    report.add(table.clone());
    Ok(table)
}

/// Returns the median; with an even number of values, the upper of the two middle ones.
pub(crate) fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the quantile of the sorted values for this share; NaN if there are none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let place = (sorted.len() as f64 * share) as usize;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// Returns the CPU time of this thread, in seconds.
pub(crate) fn thread_cpu() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split(' ').next().context("schedstat is empty")?;
    Ok(Duration::from_nanos(nanos.parse()?).as_secs_f64())
}

/// Returns the CPU time of a process, including threads that have exited, in seconds with a resolution of 0.01 s.
pub(crate) fn process_cpu(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The program name, in parentheses, may contain any character. Only numbers follow it.
    let (_, fields) = text.rsplit_once(") ").context("stat has no name")?;
    let times = fields.split(' ').skip(11).take(2);
    let ticks: u32 = times.map(|ticks| ticks.parse::<u32>().unwrap_or_default()).sum();
    Ok(f64::from(ticks) / TICKS_PER_SECOND)
}

/// Converts a `usize` to a figure.
#[expect(clippy::cast_precision_loss, reason = "counts of events are far below 2^52")]
pub(crate) fn figure(count: usize) -> f64 {
    count as f64
}

/// Converts a `u64` to a figure.
#[expect(clippy::cast_precision_loss, reason = "counts of events are far below 2^52")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

/// Returns the peak memory of a process, in MB.
pub(crate) fn peak_memory_mb(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().split(' ').next());
    let kib: f64 = peak.context("no VmHWM")?.parse()?;
    Ok(kib * 1024.0 / 1e6)
}

//! Clocks, medians and tables.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// Linux' unit of CPU time in `/proc/<pid>/stat`, on every architecture that Rust's std runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// One way of doing what a section compares. A run answers its figures, in the order of the columns.
pub(crate) struct Way<'a> {
    pub(crate) name: &'a str,
    pub(crate) run: Box<dyn FnMut() -> anyhow::Result<Vec<f64>> + 'a>,
}

/// A column of figures. Decimals are those that are printed.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) decimals: usize,
}

/// A column.
pub(crate) const fn column(name: &'static str, decimals: usize) -> Column {
    Column { name, decimals }
}

/// Runs the ways in turn, `rounds` times, and prints a table. Answers for each way the ratio of its first
/// figure to that of the first way.
pub(crate) fn side_by_side(
    title: &str,
    rounds: usize,
    columns: &[Column],
    ways: &mut [Way<'_>],
) -> anyhow::Result<Vec<f64>> {
    let mut figures: Vec<Vec<Vec<f64>>> = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for (way, figures) in ways.iter_mut().zip(&mut figures) {
            figures.push((way.run)().with_context(|| way.name.to_owned())?);
        }
    }
    let ratios: Vec<f64> = figures
        .iter()
        .map(|way| {
            median(
                way.iter()
                    .zip(&figures[0])
                    .map(|(own, first)| own[0] / first[0]),
            )
        })
        .collect();
    println!("\n{title} (medians of {rounds} rounds)");
    print!("{:<38}", "");
    for column in columns {
        print!("{:>18}", column.name);
    }
    println!("{:>8}", "ratio");
    for ((way, figures), ratio) in ways.iter().zip(&figures).zip(&ratios) {
        print!("{:<38}", way.name);
        for (index, column) in columns.iter().enumerate() {
            let figure = median(figures.iter().map(|run| run[index]));
            print!("{figure:>18.*}", column.decimals);
        }
        println!("{ratio:>8.2}");
    }
    Ok(ratios)
}

/// The middle figure; of an even number of them the upper one of the middle.
fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The seconds that this thread was on a CPU.
pub(crate) fn thread_cpu() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanos = text.split(' ').next().context("an empty schedstat")?;
    Ok(Duration::from_nanos(nanos.parse()?).as_secs_f64())
}

/// The seconds that a process was on a CPU, threads that ended included; good to 0.01 s.
pub(crate) fn process_cpu(pid: u32) -> anyhow::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may hold anything; what follows it are numbers.
    let (_, fields) = text.rsplit_once(") ").context("a stat without a name")?;
    let ticks: u32 = fields
        .split(' ')
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u32>().unwrap_or_default())
        .sum();
    Ok(f64::from(ticks) / TICKS_PER_SECOND)
}

/// A count as a figure.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of events are far below 2^52"
)]
pub(crate) fn figure(count: usize) -> f64 {
    count as f64
}

//! Measures the cost of alternatives side by side. `scripts/bench` runs this program.
//!
//! Each section runs its alternatives in turn (A B A B…), so that other load on the machine affects all of them equally. It
//! prints the medians over all rounds, including the median ratio of each alternative to the first. There are no limits that
//! a result must meet.

mod load;
mod measure;
#[path = "../tests/support/node.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared with the tests; only part of it is used here"
)]
mod node;
mod parsing;
mod peers;
mod receiving;
mod recording;
mod relay;
mod report;
#[path = "../tests/support/load.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "shared with the tests; only part of it is used here"
)]
mod sender;
mod simulated;
mod whole;
mod without;

use report::Report;

/// A function that runs the measurements of a section and adds the results to the report.
type Section = fn(&mut Report) -> anyhow::Result<()>;

/// The sections in the order in which they run.
const SECTIONS: &[(&str, Section)] = &[
    ("peers", peers::run),
    ("recording", recording::run),
    ("receiving", receiving::run),
    ("threads", peers::receiving::run),
    ("parsing", parsing::run),
    ("whole", whole::run),
    ("relay", relay::run),
    ("requests", peers::requests::run),
    ("rollups", peers::rollups::run),
    ("day", peers::day::run),
    ("growth", peers::growth::run),
    ("scale", peers::scale::run),
    ("series", peers::scale::series),
    ("simulated", simulated::run),
    ("before", peers::before::run),
];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    // `cargo test --all-targets` also runs this program, but without `--bench`.
    if !has("--bench") {
        return Ok(());
    }
    let flags = ["--bench", "--quick", "--publish"];
    let wanted = arguments.iter().map(String::as_str);
    let wanted: Vec<&str> = wanted.filter(|argument| !flags.contains(argument)).collect();
    let known = |name: &str| SECTIONS.iter().any(|(section, _)| *section == name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        let names: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("unknown section `{unknown}`; available: {}", names.join(", "));
    }
    let mut report = Report::new(has("--quick"));
    let mut sections = SECTIONS.iter();
    let measured = sections.try_for_each(|(name, run)| {
        let is_wanted = wanted.is_empty() || wanted.contains(name);
        if is_wanted { run(&mut report) } else { Ok(()) }
    });
    // Results before a failure are kept but not published.
    report.write(measured.is_ok() && has("--publish"))?;
    measured
}

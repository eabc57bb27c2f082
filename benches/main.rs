//! What each way costs, measured side by side. `scripts/bench` runs it.
//!
//! Each section runs the ways that it compares in turn, A B A B…, so that whatever else the machine does falls
//! on all of them; it prints medians, and ratios as the median over the rounds. Nothing here passes or fails.

mod load;
mod measure;
#[path = "../tests/support/node.rs"]
#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the tests' own; a part of it is used here"
)]
mod node;
mod parsing;
mod peers;
mod receiving;
mod recording;
mod relay;
mod report;
mod whole;
mod without;

use report::Report;

/// Measures and reports.
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
];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    // `cargo test --all-targets` starts it, too, without this.
    if !has("--bench") {
        return Ok(());
    }
    let flags = ["--bench", "--quick", "--publish"];
    let wanted = arguments.iter().map(String::as_str);
    let wanted: Vec<&str> = wanted.filter(|it| !flags.contains(it)).collect();
    let known = |name: &str| SECTIONS.iter().any(|(section, _)| *section == name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        let names: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("there is no section `{unknown}`; there are {}", names.join(", "));
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

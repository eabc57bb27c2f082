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
mod receiving;
mod recording;
mod relay;
mod task;
mod whole;
mod without;

/// Measures and prints.
type Section = fn() -> anyhow::Result<()>;

/// The sections in the order in which they run.
const SECTIONS: &[(&str, Section)] = &[
    ("recording", recording::run),
    ("receiving", receiving::run),
    ("parsing", parsing::run),
    ("whole", whole::run),
    ("relay", relay::run),
];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` starts it, too, without this.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let wanted: Vec<&String> = arguments.iter().filter(|a| *a != "--bench").collect();
    let known = |name: &str| SECTIONS.iter().any(|(section, _)| *section == name);
    if let Some(unknown) = wanted.iter().find(|name| !known(name)) {
        let names: Vec<_> = SECTIONS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!(
            "there is no section `{unknown}`; there are {}",
            names.join(", ")
        );
    }
    println!("{} cores", std::thread::available_parallelism()?);
    for (name, run) in SECTIONS {
        if wanted.is_empty() || wanted.iter().any(|section| section == name) {
            run()?;
        }
    }
    Ok(())
}

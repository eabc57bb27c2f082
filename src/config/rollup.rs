//! Builds the rollups from `[rollup]`, or from each `[[rollup]]`.

use std::time::Duration;

use super::output::Output;
use super::sections;
use super::values::Effective;
use crate::event::{Every, Rollup, RollupLimits, Tags};
use crate::output::line_protocol::{CUMULATIVE_MEASUREMENT, UNIQUE_MEASUREMENT};

/// Maximum number of rollups. There is a limit because each sealed minute is added to the windows of every rollup.
const ROLLUPS_MAX: usize = 16;
const DAY: Duration = Duration::from_secs(86_400);

/// Returns whether the suffixes make the names of two metrics equal, also those of the fields (`metrics` in `output/mod.rs`).
fn clash(one: &str, other: &str) -> bool {
    let ends = ["", "_error", "_complete"];
    let is_other =
        |(one, other): (&str, &str)| one.strip_prefix(other).is_some_and(|end| ends.contains(&end));
    is_other((one, other)) || is_other((other, one))
}

pub(super) fn read(values: &mut Effective, outputs: &[Output]) -> Vec<Rollup> {
    let mut rollups: Vec<Rollup> = Vec::new();
    for place in 0..values.rollups() {
        values.index = place;
        let keys = sections::Rollup::read(values);
        let name = keys.name.as_str();
        let zone = keys.time_zone.unwrap_or(chrono_tz::UTC);
        let every = Every::new(keys.every, zone);
        let is_grouped = !(keys.by.is_empty() && keys.without.is_empty());
        let is_whole = !is_grouped && keys.keep.is_empty() && keys.drop.is_empty();
        let usual = match every {
            Some(every) if is_whole => format!("_{every}"),
            _ => format!("_{name}"),
        };
        let suffix = keys.suffix.unwrap_or(usual);
        let is_probe = outputs.iter().any(|output| {
            let probe = &*output.probe_measurement;
            [UNIQUE_MEASUREMENT, CUMULATIVE_MEASUREMENT]
                .iter()
                .filter_map(|measurement| probe.strip_prefix(measurement))
                .any(|end| clash(end, &suffix))
        });
        for (paths, holds, text) in [
            (
                &["rollup.name"][..],
                rollups.iter().all(|other| other.name != name),
                "is also the name of a different rollup; use unique names",
            ),
            (
                &["rollup.name"],
                place < ROLLUPS_MAX,
                "exceeds the limit of 16 rollups; remove a rollup",
            ),
            (
                &["rollup.every"],
                every.is_some(),
                "neither divides a day nor is one or seven days; use for example 5m, 1h, 12h, 1day or 7days",
            ),
            (
                &["rollup.time_zone", "rollup.every"],
                keys.every >= DAY || zone == chrono_tz::UTC,
                "applies only to windows of whole days; remove it, or set rollup.every to 1day or 7days",
            ),
            (
                &["rollup.without", "rollup.by"],
                keys.by.is_empty() || keys.without.is_empty(),
                "cannot be combined with rollup.by; remove one of them",
            ),
            (
                &["rollup.suffix", "rollup.name"],
                rollups.iter().all(|other| !clash(&other.suffix, &suffix)) && !is_probe,
                "makes the names of the measurements equal to those of a different rollup or of a probe; set a different rollup.suffix",
            ),
        ] {
            values.together(paths, holds, text);
        }
        rollups.push(Rollup {
            name: name.to_owned(),
            every: every.unwrap_or(Every::Minutes(60)),
            tags: match (keys.by, keys.without) {
                (by, _) if !by.is_empty() => Tags::By(by),
                (_, without) if !without.is_empty() => Tags::Without(without),
                _ => Tags::All,
            },
            keep: keys.keep,
            drop: keys.drop,
            limits: RollupLimits {
                users_max: keys.users_max,
                groups_max: keys.groups_max,
                bytes_max: keys.memory_max,
            },
            suffix: suffix.into(),
        });
    }
    values.index = 0;
    rollups
}

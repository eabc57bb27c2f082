//! Rollups in the model: which minutes form a window, and which series form a group.

use std::ops::RangeInclusive;

use event_data_service::event::{Every, Rollup, RollupLimits, TagFilter, Tags};

use super::event::{GROUP, overflows, series_name};

#[derive(Debug, Clone, Copy)]
pub(crate) struct RollupPlan {
    /// The length of a window in minutes, which divides an hour.
    pub(crate) minutes: i64,
    /// Whether all series are in one group, instead of each in its own group.
    pub(crate) is_grouped: bool,
    /// The series that is not counted.
    pub(crate) dropped: Option<u8>,
}

impl RollupPlan {
    /// Returns the last minute of the window with this minute.
    pub(crate) const fn last(self, minute: i64) -> i64 {
        (minute.div_euclid(self.minutes) + 1) * self.minutes - 1
    }

    /// Returns the minutes of the window with this last minute.
    pub(crate) const fn window(self, last: i64) -> RangeInclusive<i64> {
        last + 1 - self.minutes..=last
    }

    pub(crate) fn group(self, series: u8) -> Option<u8> {
        let group = if self.is_grouped && overflows(series).is_none() { GROUP } else { series };
        (self.dropped != Some(series)).then_some(group)
    }

    pub(crate) fn rollup(self, number: usize) -> Rollup {
        let tags = if self.is_grouped { Tags::By(vec!["kind".to_owned()]) } else { Tags::All };
        let drop = self.dropped.and_then(|series| series_name(series).split(',').next_back());
        Rollup {
            name: format!("r{number}"),
            every: Every::Minutes(self.minutes),
            tags,
            keep: Vec::new(),
            drop: drop.and_then(TagFilter::new).into_iter().collect(),
            limits: RollupLimits { users_max: 1000, groups_max: 1000, bytes_max: 1 << 20 },
            suffix: format!("_r{number}").into(),
        }
    }
}

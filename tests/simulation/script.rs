//! The elements of a plan: deliveries of lines, blows to nodes, rollbacks and outages.

use std::time::Duration;

use super::event::{Event, series_name, user_name};

#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) after: i64,
    pub(crate) event: Event,
    pub(crate) stamped: bool,
}

impl Delivery {
    pub(crate) fn line(&self) -> String {
        let Event { series, user, at } = self.event;
        let (series, user) = (series_name(series), user_name(user));
        if self.stamped {
            format!("{series} value={user} {at}")
        } else {
            format!("{series} value={user}")
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Blow {
    /// The node is killed, and restarts after this time.
    Kill(Duration),
    /// The node is stopped, and restarts after this time.
    Stop(Duration),
    Pause(Duration),
}

/// A rollback of the store. The times are in nanoseconds after the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forget {
    pub(crate) saved: i64,
    pub(crate) at: i64,
    pub(crate) is_noticed: bool,
    pub(crate) part: Part,
}

/// The keys that a rollback concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Series,
    Windows,
}

/// An outage. The times are in nanoseconds after the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) node: Option<usize>,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

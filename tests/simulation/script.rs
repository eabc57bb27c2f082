//! What a schedule is made of: lines that arrive, blows to a node, and times in which something is away.

use std::time::Duration;

use super::event::{Event, series_name, user_name};

/// A line that reaches a node.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    /// Nanoseconds after the beginning.
    pub(crate) after: i64,
    pub(crate) event: Event,
    /// Whether the line has a timestamp.
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

/// What happens to a node, whatever it does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Blow {
    /// It is killed, and starts again after this long.
    Kill(Duration),
    /// It is stopped in order, and starts again after this long.
    Stop(Duration),
    /// It sleeps for this long.
    Pause(Duration),
}

/// The store goes back to what it was before. In nanoseconds after the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forget {
    pub(crate) saved: i64,
    pub(crate) at: i64,
    /// Whether all connections are lost by it.
    pub(crate) is_noticed: bool,
}

/// A time in which something is away, in nanoseconds after the beginning.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    /// Only for this node.
    pub(crate) node: Option<usize>,
    pub(crate) from: i64,
    pub(crate) to: i64,
}

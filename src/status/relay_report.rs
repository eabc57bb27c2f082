//! [`RelayReport`]: the report of a relay. It is read like the report of a node.

use serde::{Deserialize, Serialize};

use super::report::{Report, rate};

/// The report of a relay, some kilobytes long at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RelayReport {
    /// The relay's name.
    pub name: String,
    /// Name and number of the process.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// When it started, by its own clock (RFC 3339).
    pub started: String,
    /// Seconds since then.
    pub uptime_seconds: u64,
    /// Where it receives.
    pub listen: Vec<String>,
    /// Lines read, over the last ten seconds.
    #[serde(deserialize_with = "rate")]
    pub received_per_second: f64,
    /// Events among them.
    #[serde(deserialize_with = "rate")]
    pub events_per_second: f64,
    /// Line counts since the process started.
    pub totals: RelayTotals,
    /// The same of the last five minutes, or less.
    pub recent: RelayTotals,
    /// The seconds that `recent` covers.
    pub recent_seconds: u64,
    /// The nodes that it sends to, since the process started.
    pub to: Vec<TargetReport>,
    /// The destination of lines that are no events.
    pub rest: TargetReport,
    /// The last line of each reason that was sent nowhere.
    pub unsent: Vec<UnsentReport>,
    /// Threads whose socket cannot be read.
    pub sockets_failing: u64,
    /// Workers that make no progress.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stalled: Vec<String>,
    /// Whether another process uses its name.
    pub name_taken: bool,
}

/// Counts of lines by destination. All but `rest_queued` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "each has the name of its metric")]
pub struct RelayTotals {
    pub received: u64,
    pub events: u64,
    /// Events that no node was sent.
    pub nowhere: u64,
    pub rejected: u64,
    pub looped: u64,
    pub rest_sent: u64,
    /// Because `rest.url` is `none:`.
    pub rest_discarded: u64,
    /// For another reason.
    pub rest_dropped: u64,
    pub rest_queued: u64,
    pub kernel_drops: u64,
}

/// A destination of a relay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetReport {
    /// As it is configured, without secrets.
    pub to: String,
    /// Whether it accepts lines, by the last error of the kernel or the server.
    pub up: bool,
    /// Whether what is sent to it comes back to this relay.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_loop: bool,
    /// Lines sent to it.
    pub sent: u64,
    /// Lines not sent to it.
    pub dropped: u64,
    /// Lines that wait.
    pub queued: u64,
}

/// A line that was sent nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnsentReport {
    /// The label of the metric that counts it.
    pub reason: String,
    /// Its source address, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its beginning, escaped.
    pub line: String,
}

impl RelayTotals {
    /// Returns what came since then.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        macro_rules! less {
            ($($field:ident)*) => {
                Self { $($field: self.$field.saturating_sub(then.$field),)* rest_queued: self.rest_queued }
            };
        }
        less!(received events nowhere rejected looped rest_sent rest_discarded rest_dropped kernel_drops)
    }

    /// Returns the number of lines and datagrams lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        let parts = [self.nowhere, self.rest_dropped, self.kernel_drops];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

impl Report for RelayReport {
    fn identity(&mut self) -> [&mut String; 3] {
        [&mut self.name, &mut self.instance, &mut self.version]
    }
}

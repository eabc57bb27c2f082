//! What findings are made from.

use std::time::Duration;

use super::answer::Status;
use crate::diagnosis::Diagnosis;

/// What the configuration of who asks says, to hold what is seen against.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// `flush.grace`.
    pub grace: Duration,
    /// `flush.max_hold`.
    pub max_hold: Duration,
    /// `input.linger_max`, as far as the grace lets it.
    pub linger: Duration,
    /// How long counts are kept.
    pub retention: Duration,
    /// Names and places of the outputs.
    pub outputs: Vec<(String, String)>,
    /// How many partitions there are.
    pub partitions: usize,
}

/// What is looked at.
pub(super) struct Scene<'a> {
    pub(super) status: &'a Status,
    pub(super) expected: &'a Expected,
    /// How the configuration of who asks differs from that of the nodes.
    pub(super) difference: Option<&'a Diagnosis>,
}

/// So many of a hundred.
pub(super) fn percent(part: u64, all: u64) -> u64 {
    part.saturating_mul(100) / all.max(1)
}

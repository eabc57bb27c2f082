//! The options of `eds quarantine`.

use clap::Args;

use super::QuarantineError;
use crate::event::Minute;
use crate::store::Quarantined;

/// Lines of a table that are still looked at.
const LIMIT: usize = 1000;

/// What to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// A line each.
    List(List),
    /// Everything about each.
    Show(Show),
    /// Take them back, to be sent again.
    Retry(Change),
    /// Print them, and forget them.
    Drop(Change),
}

/// Which of them.
#[derive(Debug, Clone, Default, Args)]
pub struct Selection {
    /// Of this minute, such as 20161204:1118; may be given several times
    #[arg(long, value_name = "MINUTE")]
    pub minute: Vec<Minute>,
    /// Of this series, as the list shows it; may be given several times
    #[arg(long, value_name = "SERIES")]
    pub series: Vec<String>,
}

/// `eds quarantine list`.
#[derive(Debug, Clone, Args)]
pub struct List {
    /// Which.
    #[command(flatten)]
    pub selection: Selection,
    /// The most to show, lowest minute first; 1000 in a table, all of them in JSON
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// `eds quarantine show`.
#[derive(Debug, Clone, Args)]
pub struct Show {
    /// Which.
    #[command(flatten)]
    pub selection: Selection,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// `eds quarantine retry` and `eds quarantine drop`.
#[derive(Debug, Clone, Args)]
#[group(id = "which", required = true, multiple = true, args = ["minute", "series", "all"])]
pub struct Change {
    /// Which.
    #[command(flatten)]
    pub selection: Selection,
    /// All of them
    #[arg(long, conflicts_with_all = ["minute", "series"])]
    pub all: bool,
    /// One JSON object a line
    #[arg(long)]
    pub json: bool,
}

impl List {
    /// The most to show; `None`: all.
    pub(super) const fn limit(&self) -> Option<usize> {
        match self.limit {
            None if !self.json => Some(LIMIT),
            limit => limit,
        }
    }
}

impl Selection {
    /// Whether these counts belong to it.
    pub(super) fn holds(&self, quarantined: &Quarantined) -> bool {
        (self.minute.is_empty() || self.minute.contains(&quarantined.minute))
            && (self.series.is_empty() || self.series.contains(&quarantined.series))
    }

    /// A selection that found nothing is a failure; all of nothing is none.
    pub(super) fn answered_by(&self, found: u64) -> Result<(), QuarantineError> {
        let is_all = self.minute.is_empty() && self.series.is_empty();
        if found > 0 || is_all { Ok(()) } else { Err(QuarantineError::NothingSelected) }
    }
}

//! The status of the nodes, relays, store and outputs, with findings and remedies. It never affects what a node does.

mod answer;
mod findings;
mod losses;
mod process_findings;
mod report;
mod reporter;
mod summary;
mod table;

#[cfg(test)]
mod tests;

pub(crate) use self::answer::{Expected, Status};
pub(crate) use self::losses::LossReporter;
pub(crate) use self::report::{
    MinuteLimits, ProcessReport, RelayDetails, RelayReport, RelayTotals, RequestsReport,
    TargetReport, UnsentReport,
};
pub(crate) use self::reporter::{
    History, NodeReporter, REPORT_INTERVAL, REPORTED_WITHIN, STALLED_AFTER,
};
pub(crate) use self::summary::Observer;
pub(crate) use self::table::{bytes, lines, relay_page};

//! The status of nodes, relays, store and outputs: findings with their causes and remedies. No node decides anything by it.
//!
//! | file | content |
//! | --- | --- |
//! | `report.rs` | the reports of nodes and relays, read field by field |
//! | `reporter.rs` | the task that writes the report of a node; totals of the last minutes |
//! | `losses.rs` | adds the losses of a process to the record of losses |
//! | `answer.rs` | the answer in JSON |
//! | `summary.rs` | surveys the store and computes the answer |
//! | `findings.rs`, `process_findings.rs` | the findings |
//! | `table.rs` | the answer as text, and the page of a relay |

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
    ProcessReport, RelayDetails, RelayReport, RelayTotals, TargetReport, UnsentReport,
};
pub(crate) use self::reporter::{
    History, NodeReporter, REPORT_INTERVAL, REPORTED_WITHIN, STALLED_AFTER,
};
pub(crate) use self::summary::Observer;
pub(crate) use self::table::{lines, relay_page};

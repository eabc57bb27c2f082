//! How the nodes, the store and the outputs are, all together: what is wrong, why, and what to do.
//!
//! | file | what it does |
//! | --- | --- |
//! | `report.rs`, `relay_report.rs` | what a node or a relay says of itself, and how what another version says is read |
//! | `reporter.rs`, `history.rs` | says it of a node, every two seconds; its totals of the last minutes |
//! | `relay_page.rs` | what a relay shows of itself, for people |
//! | `answer.rs` | the answer, as `docs/openapi.json` describes it |
//! | `losses.rs` | brings what the process lost into the record of losses |
//! | `summary.rs` | from what was seen to the answer. Pure |
//! | `findings.rs`, `node_findings.rs`, `redis_findings.rs`, `relay_findings.rs` | what is wrong, in the words of `diagnosis`. Pure |
//! | `scene.rs` | what they are made from |
//! | `observer.rs` | looks at the store, and answers |
//! | `table.rs` | the answer for people |
//!
//! `eds status` and every node answer by the same code. Nothing is decided by it.

mod answer;
mod findings;
mod history;
mod losses;
mod node_findings;
mod observer;
mod redis_findings;
mod relay_findings;
mod relay_page;
mod relay_report;
mod report;
mod reporter;
mod scene;
mod summary;
mod table;

#[cfg(test)]
mod tests;

pub use self::answer::{
    Answer, CauseStatus, Lost, NodeStatus, OldMinutes, OldestUnsent, OutputStatus,
    PartitionsStatus, RedisStatus, RelayStatus, States, Status,
};
pub use self::history::History;
pub use self::losses::{LossReporter, node_losses, relay_losses};
pub use self::observer::Observer;
pub use self::relay_page::relay_page;
pub use self::relay_report::{RelayReport, RelayTotals, TargetReport, UnsentReport};
pub use self::report::{NodeReport, OutputReport, Queue, RejectedReport, Report, Room, Totals};
pub use self::reporter::{Latest, Reporter};
pub use self::scene::Expected;
pub use self::table::lines;

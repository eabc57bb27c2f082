//! What the service tells of itself: the ledger of events, the gauges and counters, and signs of life.

mod behind;
mod confirmed;
mod exposition;
mod ledger;
mod metrics;
mod process;
mod progress;
mod throttle;
mod rounded;

pub use behind::Behind;
pub use confirmed::Confirmed;
pub use exposition::Format;
pub use ledger::{DropReason, Intake, Ledger, LedgerTotals};
pub use metrics::Metrics;
pub use process::open_files_max;
pub use progress::{Heartbeat, Progress};
pub use throttle::Throttle;
pub use rounded::Rounded;

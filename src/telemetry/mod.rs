//! What the service tells of itself: the ledger of events, the gauges and counters, and signs of life.

mod behind;
mod confirmed;
mod exposition;
mod ledger;
mod metrics;
mod process;
mod progress;
mod rounded;
mod throttle;

pub use behind::Behind;
pub use confirmed::Confirmed;
pub use exposition::Format;
pub use ledger::{DropReason, Intake, Ledger, LedgerTotals};
pub use metrics::Metrics;
pub use process::open_files_max;
pub use progress::{Heartbeat, Progress};
pub use rounded::Rounded;
pub use throttle::Throttle;

//! What the service reports of itself: metrics of the node and the process, as text. Nothing reads a metric to decide.

mod exposition;
mod metrics;
mod process;

pub use exposition::Format;
pub use metrics::Metrics;
pub use process::open_files_max;

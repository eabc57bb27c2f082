//! What a recorder is given: a batch, and where it comes from.

use tokio::sync::oneshot;

use crate::event::Batch;

/// A batch on its way to a recorder.
#[derive(Debug)]
pub struct Delivery {
    /// The events, all of the recorder's partition.
    pub batch: Batch,
    /// Told when all of them are recorded or rejected. Only batches that are on disk have it; it is dropped when
    /// the recorder gives up, and then they are still there.
    pub done: Option<oneshot::Sender<()>>,
}

impl From<Batch> for Delivery {
    fn from(batch: Batch) -> Self {
        Self { batch, done: None }
    }
}

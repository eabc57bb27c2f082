//! What happens to locks and values: for metrics and traces.

use std::fmt;
use std::time::Duration;

use super::name::Name;

/// What happened to a lock or a value, in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A caller got the lock.
    Locked {
        /// The time of waiting.
        waited: Duration,
        /// The number of requests before.
        tries: u32,
    },
    /// A caller did not get the lock.
    NotLocked {
        /// The time of waiting.
        waited: Duration,
    },
    /// A lock, or the right to compute, was lost while it was held.
    Lost,
    /// A caller found a value.
    Found {
        /// How old it was.
        age: Duration,
    },
    /// A caller waited for a value and got it, or the error of its computation.
    Waited {
        /// The time of waiting.
        waited: Duration,
    },
    /// A caller waited for a value and gave up.
    GaveUp {
        /// The time of waiting.
        waited: Duration,
    },
    /// A computation begins. It ends as [`Computed`](Self::Computed), [`Failed`](Self::Failed) or [`Lost`](Self::Lost).
    Computing,
    /// A computation gave a value.
    Computed {
        /// Its duration.
        cost: Duration,
        /// How large the value is.
        bytes: usize,
    },
    /// A computation gave an error, panicked, or took too long.
    Failed {
        /// Its duration.
        cost: Duration,
    },
}

/// Is called with each event, if there is a function. It must not block.
#[derive(Default)]
pub(super) struct Hook(Option<Box<Function>>);

type Function = dyn Fn(&Name, &Event) + Send + Sync;

impl Hook {
    pub(super) fn new(hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(hook)))
    }

    pub(super) fn call(&self, name: &Name, event: &Event) {
        if let Some(hook) = &self.0 {
            hook(name, event);
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hook")
    }
}

//! What happens to locks and values, as it happens: for metrics and traces.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::name::Name;

/// What happened to a lock or a value, in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Somebody got the lock.
    Locked {
        /// How long he waited for it.
        waited: Duration,
        /// How often he asked before.
        tries: u32,
    },
    /// Somebody did not get the lock.
    NotLocked {
        /// How long he waited for it.
        waited: Duration,
    },
    /// A lock, or the right to compute, was lost while it was held.
    Lost,
    /// A value was there when somebody asked for it.
    Found {
        /// How old it was.
        age: Duration,
    },
    /// A value was not there, and somebody who waited for it got it, or the error of its computation.
    Waited {
        /// How long he waited for it.
        waited: Duration,
    },
    /// Somebody who waited for a value gave up.
    GaveUp {
        /// How long he waited for it.
        waited: Duration,
    },
    /// A computation begins. It ends as [`Computed`](Self::Computed), [`Failed`](Self::Failed) or [`Lost`](Self::Lost).
    Computing,
    /// A computation gave a value.
    Computed {
        /// How long it took.
        cost: Duration,
        /// How large the value is.
        bytes: usize,
    },
    /// A computation gave an error, panicked, or took too long.
    Failed {
        /// How long it took.
        cost: Duration,
    },
}

type Function = dyn Fn(&Name, &Event) + Send + Sync;

/// What is called with each event, if anything is. It must not block.
#[derive(Clone, Default)]
pub(super) struct Hook(Option<Arc<Function>>);

impl Hook {
    pub(super) fn new(hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(super) fn call(&self, name: &Name, event: &Event) {
        if let Some(hook) = &self.0 {
            hook(name, event);
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Hook" } else { "no Hook" })
    }
}

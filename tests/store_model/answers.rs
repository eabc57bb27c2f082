//! What the stores answer, in words in which both say the same.

use std::fmt::Debug;

use event_data_service::store::StoreError;

/// What each store answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Both {
    pub(crate) redis: String,
    pub(crate) memory: String,
}

impl Both {
    pub(super) fn of(redis: impl Into<String>, memory: impl Into<String>) -> Self {
        let (redis, memory) = (redis.into(), memory.into());
        Self { redis, memory }
    }

    /// There was nothing to do it with.
    pub(super) fn nothing() -> Self {
        Self::of("-", "-")
    }
}

/// An answer as text.
pub(super) fn text<T: Debug>(answer: &Result<T, StoreError>) -> String {
    answer
        .as_ref()
        .map_or_else(ToString::to_string, |answer| format!("{answer:?}"))
}

/// Redis must not do what is asked of another generation; the model has none and is not asked.
pub(super) fn refused<T: Debug>(answer: &Result<T, StoreError>) -> Both {
    match answer {
        Err(StoreError::Unavailable(_)) => Both::of("another generation", "another generation"),
        answer => Both::of(text(answer), "another generation"),
    }
}

/// The epochs of a store in the order in which they came. Redis draws them by lot.
#[derive(Debug, Default)]
pub(super) struct Epochs(Vec<u64>);

impl Epochs {
    /// 0 is none, 1 the first.
    pub(super) fn number(&mut self, epoch: u64) -> usize {
        if epoch == 0 {
            return 0;
        }
        let there = self.0.iter().position(|one| *one == epoch);
        there.map_or_else(
            || {
                self.0.push(epoch);
                self.0.len()
            },
            |place| place + 1,
        )
    }

    pub(super) fn epoch(&self, number: usize) -> u64 {
        number.checked_sub(1).map_or(0, |place| self.0[place])
    }
}

//! [`Faulty`]: an arbiter outside of the crate that counts its calls and fails on request.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordination::{
    Arbiter, ArbiterError, Beginning, Entry, Event, Holder, Listener, Locking, Name, Token,
};
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// What becomes of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// The delay before it executes.
    pub(crate) there: Duration,
    /// The number of executions.
    pub(crate) times: usize,
    /// The delay of the answer.
    pub(crate) back: Duration,
    pub(crate) is_answered: bool,
}

impl Fate {
    pub(crate) const FINE: Self =
        Self { there: Duration::ZERO, times: 1, back: Duration::ZERO, is_answered: true };
    pub(crate) const LOST: Self = Self { times: 0, ..Self::FINE };
}

type Fates = Box<dyn Fn(&'static str) -> Fate + Send + Sync>;

/// Decides about each operation by its name.
pub(crate) struct Faulty {
    inner: Arc<dyn Arbiter>,
    fates: Fates,
    answered: watch::Sender<HashMap<&'static str, usize>>,
}

impl Faulty {
    pub(crate) fn new(
        inner: Arc<dyn Arbiter>,
        fates: impl Fn(&'static str) -> Fate + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner, fates: Box::new(fates), answered: watch::Sender::default() })
    }

    /// One without faults.
    pub(crate) fn counting(inner: Arc<dyn Arbiter>) -> Arc<Self> {
        Self::new(inner, |_| Fate::FINE)
    }

    fn count(&self, operation: &'static str) {
        let count = |counts: &mut HashMap<_, usize>| *counts.entry(operation).or_default() += 1;
        self.answered.send_modify(count);
    }

    /// Waits until this many of these operations were answered.
    pub(crate) async fn answered(&self, operation: &'static str, times: usize) {
        let mut answered = self.answered.subscribe();
        let enough = |counts: &HashMap<_, usize>| counts.get(operation) >= Some(&times);
        answered.wait_for(enough).await.unwrap();
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

async fn pass(span: Duration) {
    if !span.is_zero() {
        tokio::time::sleep(span).await;
    }
}

macro_rules! operations {
    ($($name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        #[async_trait]
        impl Arbiter for Faulty {
            $(async fn $name(&self, $($argument: $type),*) -> Result<$answer, ArbiterError> {
                let fate = (self.fates)(stringify!($name));
                pass(fate.there).await;
                let mut answer = Err(ArbiterError::Unavailable("no answer".to_owned()));
                for _ in 0..fate.times {
                    answer = self.inner.$name($($argument),*).await;
                }
                self.count(stringify!($name));
                pass(fate.back).await;
                if fate.is_answered {
                    return answer;
                }
                Err(ArbiterError::Unavailable("no answer".to_owned()))
            })*

            fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener {
                self.inner.listen(name, holder)
            }

            fn keep(&self, renewing: BoxFuture<'static, ()>) -> AbortOnDropHandle<()> {
                self.inner.keep(renewing)
            }

            fn observe(&self, name: &Name, event: &Event) {
                self.inner.observe(name, event);
            }
        }
    };
}

operations! {
    lock(name: &Name, holder: &Holder, ttl: Duration, presence: Option<Duration>) -> Locking;
    renew(name: &Name, token: Token, ttl: Duration) -> bool;
    unlock(name: &Name, token: Token) -> bool;
    leave(name: &Name, holder: &Holder) -> ();
    peek(name: &Name) -> Option<Entry>;
    begin(name: &Name, holder: &Holder, ttl: Duration, outdated: Option<Token>) -> Beginning;
    publish(name: &Name, token: Token, value: &[u8], cost: Duration, ttl: Duration) -> bool;
    fail(name: &Name, token: Token, message: &str, ttl: Duration) -> bool;
    invalidate(name: &Name) -> bool;
    replace(name: &Name, items: &[&[u8]], ttl: Duration, token: Option<Token>) -> bool;
    list(name: &Name) -> Vec<Vec<u8>>;
}

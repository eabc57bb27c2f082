//! [`Faulty`], an arbiter that counts its calls and fails on request.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use coordination::{
    Arbiter, Beginning, Claim, Entry, Error, Listener, Locking, Name, Place, Token,
};
use tokio::sync::watch;

/// What happens to an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fate {
    /// The delay before the operation is executed.
    pub(crate) there: Duration,
    /// How many times the operation is executed.
    pub(crate) times: usize,
    /// The delay of the response.
    pub(crate) back: Duration,
    pub(crate) is_answered: bool,
}

impl Fate {
    pub(crate) const FINE: Self =
        Self { there: Duration::ZERO, times: 1, back: Duration::ZERO, is_answered: true };
    pub(crate) const LOST: Self = Self { times: 0, ..Self::FINE };
}

type Fates = Arc<dyn Fn(&'static str) -> Fate + Send + Sync>;

/// An arbiter with a function that determines the fate of each operation from its name.
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
        Arc::new(Self { inner, fates: Arc::new(fates), answered: watch::Sender::default() })
    }

    /// Returns an arbiter that only counts calls.
    pub(crate) fn counting(inner: Arc<dyn Arbiter>) -> Arc<Self> {
        Self::new(inner, |_| Fate::FINE)
    }

    fn count(&self, operation: &'static str) {
        let count = |counts: &mut HashMap<_, usize>| *counts.entry(operation).or_default() += 1;
        self.answered.send_modify(count);
    }

    /// Waits until this operation has been answered this many times.
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
            $(async fn $name(&self, $($argument: $type),*) -> Result<$answer, Error> {
                let fate = (self.fates)(stringify!($name));
                pass(fate.there).await;
                let mut answer = Err(Error::Unavailable("no reply".to_owned()));
                for _ in 0..fate.times {
                    answer = self.inner.$name($($argument),*).await;
                }
                self.count(stringify!($name));
                pass(fate.back).await;
                if fate.is_answered {
                    return answer;
                }
                Err(Error::Unavailable("no reply".to_owned()))
            })*

            /// Delays each wake-up by the delay of a reply, or loses it.
            fn listen(&self, name: &Name, holder: Option<&str>) -> Listener {
                let mut inner = self.inner.listen(name, holder);
                if !self.is_simulated() {
                    return inner;
                }
                let (sender, receiver) = watch::channel(None);
                let fates = Arc::clone(&self.fates);
                tokio::spawn(async move {
                    loop {
                        let handed = tokio::select! {
                            biased;
                            handed = inner.woken() => handed,
                            () = sender.closed() => return,
                        };
                        let fate = fates("listen");
                        pass(fate.back).await;
                        if fate.is_answered {
                            sender.send_replace(handed);
                        }
                    }
                });
                receiver.into()
            }

            fn is_simulated(&self) -> bool {
                self.inner.is_simulated()
            }
        }
    };
}

operations! {
    lock(claim: &Claim, place: Place) -> Locking;
    begin(claim: &Claim, outdated: Option<Token>) -> Beginning;
    renew(claim: &Claim) -> bool;
    release(claim: &Claim) -> bool;
    publish(claim: &Claim, output: Result<(&[u8], Duration), &str>, ttl: Duration) -> bool;
    peek(name: &Name) -> Option<Entry>;
    invalidate(name: &Name) -> bool;
    replace(name: &Name, items: &[&[u8]], ttl: Duration, token: Option<Token>) -> bool;
    list(name: &Name) -> Vec<Vec<u8>>;
}

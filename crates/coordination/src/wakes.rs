//! Wakes the listeners on a channel in this process. A wake-up is a hint to ask the arbiter again, or tells a listener that it
//! has got the lock. A listener is also woken when the subscription to its channel begins and after each interruption of the
//! subscription. A caller that first listens, then asks, and asks again when woken therefore misses nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::token::Token;

#[derive(Debug, Default)]
pub(super) struct Wakes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    channels: HashMap<String, watch::Sender<Option<Token>>>,
    is_heard: bool,
}

impl Wakes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while holding this lock, so it is never poisoned.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn listen(self: &Arc<Self>, channel: String) -> Listener {
        let mut state = self.state();
        let mut receiver = state.channels.entry(channel.clone()).or_default().subscribe();
        if state.is_heard {
            receiver.mark_changed();
        }
        drop(state);
        Listener { receiver, ending: Some((Arc::clone(self), channel)) }
    }

    pub(super) fn wake(&self, channel: &str, token: Option<Token>) {
        if let Some(sender) = self.state().channels.get(channel) {
            sender.send_replace(token);
        }
    }

    /// Notes that wake-ups are received from now on, and wakes all listeners, since they may have missed earlier wake-ups.
    pub(super) fn hear(&self) {
        let mut state = self.state();
        state.is_heard = true;
        for sender in state.channels.values() {
            sender.send_replace(None);
        }
    }

    /// Notes that wake-ups may be missed until the next [`hear`](Self::hear).
    #[cfg(feature = "redis")]
    pub(super) fn deafen(&self) {
        self.state().is_heard = false;
    }
}

/// Wakes a caller when it should ask the [`Arbiter`](super::Arbiter) again. Can be created from a [`watch::Receiver`].
#[derive(Debug)]
pub struct Listener {
    receiver: watch::Receiver<Option<Token>>,
    ending: Option<(Arc<Wakes>, String)>,
}

impl From<watch::Receiver<Option<Token>>> for Listener {
    fn from(receiver: watch::Receiver<Option<Token>>) -> Self {
        Self { receiver, ending: None }
    }
}

impl Listener {
    /// Forgets earlier wake-ups, because the caller is about to ask.
    pub(super) fn forget(&mut self) {
        self.receiver.mark_unchanged();
    }

    /// Waits for the next wake-up. Returns the token of the new lease if the lock was handed over. Wake-ups may be spurious and, in rare cases,
    /// late or missed, so limit the wait.
    pub async fn woken(&mut self) -> Option<Token> {
        if self.receiver.changed().await.is_err() {
            // The sender has been dropped, so there will be no wake-ups.
            std::future::pending::<()>().await;
        }
        *self.receiver.borrow_and_update()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((wakes, channel)) = &self.ending {
            let mut state = wakes.state();
            // Replace this listener's receiver, which drops it, so that it is not counted below.
            self.receiver = watch::Sender::new(None).subscribe();
            if state.channels.get(channel).is_some_and(|sender| sender.receiver_count() == 0) {
                state.channels.remove(channel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn listener_wakes_at_subscription_and_after_each_interruption() {
        let wakes = Arc::<Wakes>::default();
        let mut listener = wakes.listen("a".to_owned());
        for _ in 0..2 {
            assert!(listener.woken().now_or_never().is_none());
            wakes.hear();
            assert!(listener.woken().now_or_never().is_some());
            wakes.deafen();
        }
        wakes.hear();
        // A listener that joins while wake-ups are received is woken immediately.
        let mut second = wakes.listen("a".to_owned());
        assert!(second.woken().now_or_never().is_some());
        wakes.wake("b", None);
        assert!(second.woken().now_or_never().is_none());
        wakes.wake("a", None);
        assert!(listener.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
    }

    #[test]
    fn a_channel_is_removed_with_its_last_listener() {
        let wakes = Arc::<Wakes>::default();
        let first = wakes.listen("a".to_owned());
        let second = wakes.listen("a".to_owned());
        drop(first);
        assert!(wakes.state().channels.contains_key("a"));
        drop(second);
        assert!(wakes.state().channels.is_empty());
    }
}

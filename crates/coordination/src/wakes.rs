//! Which listeners of this process are woken by which channel.
//!
//! A wake-up is only a hint to ask again. None is lost while channels are heard: a listener is woken once as soon as its channel
//! is heard, and once more after each interruption. So a caller that listens, asks, and asks again whenever woken misses
//! nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The channels to which this process listens.
#[derive(Debug, Default)]
pub(super) struct Wakes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// By channel, with the number of its listeners.
    channels: HashMap<String, (watch::Sender<()>, usize)>,
    is_heard: bool,
}

impl Wakes {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a channel as long as the listener lives.
    pub(super) fn listen(self: &Arc<Self>, channel: String) -> Listener {
        let mut state = self.state();
        let is_heard = state.is_heard;
        let (sender, listeners) = state.channels.entry(channel.clone()).or_default();
        *listeners += 1;
        let mut receiver = sender.subscribe();
        if is_heard {
            receiver.mark_changed();
        }
        drop(state);
        Listener { receiver, ending: Some((Arc::clone(self), channel)) }
    }

    /// Wakes all listeners of a channel.
    pub(super) fn wake(&self, channel: &str) {
        if let Some((sender, _)) = self.state().channels.get(channel) {
            sender.send_replace(());
        }
    }

    /// Wakes all listeners, since wake-ups before this call may have been missed.
    pub(super) fn hear(&self) {
        let mut state = self.state();
        state.is_heard = true;
        for (sender, _) in state.channels.values() {
            sender.send_replace(());
        }
    }

    /// Records that wake-ups may be missed until the next [`hear`](Self::hear).
    #[cfg(feature = "redis")]
    pub(super) fn deafen(&self) {
        self.state().is_heard = false;
    }
}

/// Wakes a caller that should ask again. An arbiter makes it of a [`watch::Receiver`] that changes then.
#[derive(Debug)]
pub struct Listener {
    receiver: watch::Receiver<()>,
    /// The channel that ends with it.
    ending: Option<(Arc<Wakes>, String)>,
}

impl From<watch::Receiver<()>> for Listener {
    fn from(receiver: watch::Receiver<()>) -> Self {
        Self { receiver, ending: None }
    }
}

impl Listener {
    /// Waits for the next wake-up. It may come for nothing, and seldom not at all: bound the wait.
    pub async fn woken(&mut self) {
        if self.receiver.changed().await.is_err() {
            // The sender is gone, so there are no wake-ups.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some((wakes, channel)) = &self.ending else {
            return;
        };
        let mut state = wakes.state();
        if let Some((_, listeners)) = state.channels.get_mut(channel) {
            *listeners -= 1;
            if *listeners == 0 {
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
    fn a_listener_is_woken_when_it_begins_to_hear_and_after_each_interruption() {
        let wakes = Arc::<Wakes>::default();
        let mut listener = wakes.listen("a".to_owned());
        for _ in 0..2 {
            assert!(listener.woken().now_or_never().is_none());
            wakes.hear();
            assert!(listener.woken().now_or_never().is_some());
            wakes.deafen();
        }
        wakes.hear();
        // A second listener is woken at once, so that it asks at once.
        let mut second = wakes.listen("a".to_owned());
        assert!(second.woken().now_or_never().is_some());
        wakes.wake("b");
        assert!(second.woken().now_or_never().is_none());
        wakes.wake("a");
        assert!(listener.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
    }

    #[test]
    fn a_channel_goes_with_its_last_listener() {
        let wakes = Arc::<Wakes>::default();
        let first = wakes.listen("a".to_owned());
        let second = wakes.listen("a".to_owned());
        drop(first);
        assert!(wakes.state().channels.contains_key("a"));
        drop(second);
        assert!(wakes.state().channels.is_empty());
    }
}

//! Which listeners of this process are woken by which channel.
//!
//! A wake-up is only a hint to ask again. None is lost while a channel is heard: a listener is
//! woken once as soon as its channel is heard, and once more after each interruption. So a caller that listens, asks, and
//! asks again whenever woken misses nothing.

#![cfg_attr(not(feature = "redis"), expect(dead_code, reason = "memory hears everything at once"))]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

/// The channels that somebody in this process listens to.
#[derive(Debug)]
pub(super) struct Wakes {
    state: Mutex<State>,
    /// Says that there are [`touched`](State::touched) channels.
    altered: Notify,
    /// Whether a channel is heard without anybody doing something for it.
    heard_at_once: bool,
}

#[derive(Debug, Default)]
struct State {
    channels: HashMap<String, Channel>,
    /// Channels that came or went since somebody looked.
    touched: HashSet<String>,
}

#[derive(Debug)]
struct Channel {
    sender: watch::Sender<()>,
    listeners: usize,
    heard: bool,
}

/// Channels that came or went.
#[derive(Debug, Default)]
pub(super) struct Altered {
    /// Those that somebody listens to.
    pub(super) wanted: Vec<String>,
    /// Those that nobody listens to.
    pub(super) unwanted: Vec<String>,
}

impl Wakes {
    /// With `heard_at_once`, all that matters happens in this process.
    pub(super) fn new(heard_at_once: bool) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), altered: Notify::new(), heard_at_once })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing here panics half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a channel as long as the listener lives.
    pub(super) fn listen(self: &Arc<Self>, channel: String) -> Listener {
        let mut state = self.state();
        let State { channels, touched } = &mut *state;
        let entry = channels.entry(channel.clone()).or_insert_with(|| {
            if !self.heard_at_once {
                touched.insert(channel.clone());
            }
            Channel { sender: watch::Sender::new(()), listeners: 0, heard: self.heard_at_once }
        });
        entry.listeners += 1;
        let mut receiver = entry.sender.subscribe();
        if entry.heard {
            receiver.mark_changed();
        }
        drop(state);
        self.altered.notify_one();
        Listener { receiver, ending: Some((Arc::clone(self), channel)) }
    }

    /// Wakes all listeners of a channel.
    pub(super) fn wake(&self, channel: &str) {
        if let Some(channel) = self.state().channels.get(channel) {
            channel.sender.send_replace(());
        }
    }

    /// From now on nothing that happens on this channel is missed.
    pub(super) fn hear(&self, channel: &str) {
        if let Some(channel) = self.state().channels.get_mut(channel) {
            channel.heard = true;
            channel.sender.send_replace(());
        }
    }

    /// Nothing is heard any more. All channels are wanted again.
    pub(super) fn deafen(&self) {
        let mut state = self.state();
        let State { channels, touched } = &mut *state;
        touched.clear();
        for (name, channel) in channels {
            channel.heard = false;
            touched.insert(name.clone());
        }
        drop(state);
        self.altered.notify_one();
    }

    /// Waits until channels come or go.
    pub(super) async fn altered(&self) -> Altered {
        loop {
            self.altered.notified().await;
            let mut state = self.state();
            let touched = std::mem::take(&mut state.touched);
            if touched.is_empty() {
                continue;
            }
            let (wanted, unwanted) =
                touched.into_iter().partition(|channel| state.channels.contains_key(channel));
            return Altered { wanted, unwanted };
        }
    }

    fn end(&self, channel: &str) {
        let mut state = self.state();
        let State { channels, touched } = &mut *state;
        let Some(entry) = channels.get_mut(channel) else {
            return;
        };
        entry.listeners -= 1;
        if entry.listeners == 0 {
            channels.remove(channel);
            if !self.heard_at_once {
                touched.insert(channel.to_owned());
                self.altered.notify_one();
            }
        }
    }
}

/// Hears when it is worth to ask again. An arbiter makes it of a [`watch::Receiver`] that changes then.
#[derive(Debug)]
pub struct Listener {
    receiver: watch::Receiver<()>,
    /// What ends with it.
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
            // There is no sender any more, so there are no wake-ups.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some((wakes, channel)) = &self.ending {
            wakes.end(channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_listener_is_woken_when_it_begins_to_hear() {
        let wakes = Wakes::new(false);
        let mut listener = wakes.listen("a".to_owned());
        assert!(listener.woken().now_or_never().is_none());
        let altered = wakes.altered().now_or_never().unwrap();
        assert_eq!(altered.wanted, ["a"]);
        wakes.hear("a");
        assert!(listener.woken().now_or_never().is_some());
        assert!(listener.woken().now_or_never().is_none());
        // A second one hears at once, so it looks at once.
        let mut second = wakes.listen("a".to_owned());
        assert!(second.woken().now_or_never().is_some());
        wakes.wake("a");
        assert!(listener.woken().now_or_never().is_some());
        assert!(second.woken().now_or_never().is_some());
    }

    #[test]
    fn after_an_interruption_every_channel_is_wanted_again() {
        let wakes = Wakes::new(false);
        let mut listener = wakes.listen("a".to_owned());
        wakes.altered().now_or_never().unwrap();
        wakes.hear("a");
        assert!(listener.woken().now_or_never().is_some());
        wakes.deafen();
        let altered = wakes.altered().now_or_never().unwrap();
        assert_eq!(altered.wanted, ["a"]);
        wakes.hear("a");
        assert!(listener.woken().now_or_never().is_some());
    }

    #[test]
    fn a_channel_goes_with_its_last_listener() {
        let wakes = Wakes::new(false);
        let first = wakes.listen("a".to_owned());
        let second = wakes.listen("a".to_owned());
        wakes.altered().now_or_never().unwrap();
        drop(first);
        assert!(wakes.altered().now_or_never().is_none());
        drop(second);
        let altered = wakes.altered().now_or_never().unwrap();
        assert_eq!(altered.unwanted, ["a"]);
        assert!(wakes.state().channels.is_empty());
    }
}

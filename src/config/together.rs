//! Keys of several sections held against each other: what cannot work is refused, what is unwise is warned of.

use std::time::Duration;

use humantime::format_duration as span;

use super::reader::Reader;
use super::{Config, StoreUrl};

/// A node looks so often at least whether the store is what it was.
const STORE_LOOK: Duration = Duration::from_secs(1);

/// Refuses what the service relies on.
pub(super) fn check(reader: &mut Reader<'_>, config: &Config) {
    let (input, flush) = (&config.input, &config.flush);
    reader.together(
        &["input.linger", "flush.grace"],
        input.linger < flush.grace,
        "is not shorter than flush.grace, so events that gather would come after their minute was closed; lower this or \
         raise that",
    );
    let StoreUrl::Redis(redis) = &config.store.url else {
        return;
    };
    reader.together(
        &["flush.interval", "flush.grace"],
        flush.interval < flush.grace,
        "is not shorter than flush.grace, but a node says only so often that it has events to bring, and the others would \
         close minutes before; lower this or raise that",
    );
    let window = config.store.replay_window;
    reader.together(
        &["store.replay_window", "store.response_timeout"],
        window.is_zero() || window >= redis.response_timeout,
        "is shorter than store.response_timeout, so what was recorded is forgotten before an answer that stays away tells \
         of a failover; raise this or lower that, or write \"0s\"",
    );
}

impl Config {
    /// What is allowed and unwise, a sentence each that names the keys.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let (input, flush) = (&self.input, &self.flush);
        let mut warnings = Vec::new();
        let mut warn = |is_unwise: bool, words: String| {
            if is_unwise {
                warnings.push(words);
            }
        };
        let StoreUrl::Redis(redis) = &self.store.url else {
            return warnings;
        };
        let (response, window) = (redis.response_timeout, self.store.replay_window);
        let noticed = redis.connect_timeout + response + STORE_LOOK;
        warn(
            flush.interval > flush.grace / 2,
            format!(
                "flush.interval ({}) is longer than half of flush.grace ({}): when recording hangs, the other nodes may \
                 close a minute before they are told",
                span(flush.interval),
                span(flush.grace)
            ),
        );
        let kept = redis.connect_timeout + response + flush.interval;
        warn(
            flush.lease < kept,
            format!(
                "flush.lease ({}) is shorter than flush.interval, store.connect_timeout and store.response_timeout \
                 together ({}): when Redis is slow, claims lapse and others send the same counts again, and a node that \
                 has events to bring is forgotten",
                span(flush.lease),
                span(kept)
            ),
        );
        warn(
            !window.is_zero() && window < noticed,
            format!(
                "store.replay_window ({}) is shorter than it may take to notice that Redis is gone (store.connect_timeout, \
                 store.response_timeout and a second: {}): a failover may lose events of the time between",
                span(window),
                span(noticed)
            ),
        );
        warn(
            response >= flush.max_hold,
            format!(
                "store.response_timeout ({}) is not shorter than flush.max_hold ({}): events whose recording hangs come \
                 after their minute was closed in any case",
                span(response),
                span(flush.max_hold)
            ),
        );
        warn(
            input.spool.is_none() && input.drain_timeout < response,
            format!(
                "input.drain_timeout ({}) is shorter than store.response_timeout ({}), and there is no input.spool_dir: one \
                 answer that is late at a stop loses what is queued",
                span(input.drain_timeout),
                span(response)
            ),
        );
        warnings
    }
}

//! The names of the keys of one state. All carry one hash tag, so that they lie in one slot of a Redis Cluster
//! and a script may use them together.

use crate::name::{Holder, Name};

/// The names of the keys of one state.
#[derive(Debug)]
pub(super) struct Keys {
    /// `{prefix:kind:name}`, or up to the first closing brace of the name: the tag is one all the same.
    tag: String,
}

impl Keys {
    pub(super) fn new(prefix: &str, name: &Name) -> Self {
        Self { tag: format!("{{{prefix}:{}}}", name.as_str()) }
    }

    fn key(&self, what: &str) -> String {
        format!("{}:{what}", self.tag)
    }

    /// HASH: token, holder, until, released.
    pub(super) fn lock(&self) -> String {
        self.key("lock")
    }

    /// ZSET: holder → when it came, µs.
    pub(super) fn queue(&self) -> String {
        self.key("queue")
    }

    /// ZSET: holder → until when it counts as alive, µs.
    pub(super) fn present(&self) -> String {
        self.key("present")
    }

    /// HASH: value, token, cost, written, expires; error, `error_expires`.
    pub(super) fn entry(&self) -> String {
        self.key("entry")
    }

    /// LIST: the items that are read.
    pub(super) fn list(&self) -> String {
        self.key("list")
    }

    /// STRING: the greatest token that replaced the list.
    pub(super) fn writer(&self) -> String {
        self.key("writer")
    }

    /// LIST: the items of a writer, before they are read.
    pub(super) fn staged(&self, writer: &Holder) -> String {
        self.key(&format!("{}:staged", writer.as_str()))
    }

    /// STRING: there for a while when a writer's items are in the place of the list.
    pub(super) fn committed(&self, writer: &Holder) -> String {
        self.key(&format!("{}:committed", writer.as_str()))
    }

    /// The channel that wakes all; with `:` and a holder, that one.
    pub(super) fn channel(&self) -> String {
        self.key("wake")
    }

    pub(super) fn channel_of(&self, holder: Option<&Holder>) -> String {
        holder.map_or_else(
            || self.channel(),
            |holder| format!("{}:{}", self.channel(), holder.as_str()),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_a_name_share_a_hash_tag() {
        let keys = Keys::new("app", &Name::of_mutex("a").unwrap());
        assert_eq!(keys.lock(), "{app:mutex:a}:lock");
        assert_eq!(keys.queue(), "{app:mutex:a}:queue");
        assert_eq!(keys.channel(), "{app:mutex:a}:wake");
        // A brace in the name makes the tag shorter for all keys alike, and never empty.
        let keys = Keys::new("app", &Name::of_mutex("}x{").unwrap());
        assert_eq!(keys.lock(), "{app:mutex:}x{}:lock");
    }
}

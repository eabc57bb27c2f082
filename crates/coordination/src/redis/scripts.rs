//! The Lua scripts. Each is atomic and works on one slot.
//!
//! Those that end something, or hold it for longer, run also when Redis is over its memory limit: they add no key, and a
//! lock that could not be released would help nobody. Those that begin something or keep it do not: whatever is
//! coordinated here, Redis has room for what else is kept in it.

use std::sync::LazyLock;

use redis::{Cmd, Script};

/// A script and what it begins with.
#[derive(Debug)]
pub(super) struct Source {
    text: &'static str,
    sha1: String,
}

impl Source {
    fn new(text: &'static str) -> Self {
        let sha1 = Script::new(text).get_hash().to_owned();
        Self { text, sha1 }
    }

    /// Runs it by its hash: what is sent first.
    pub(super) fn by_sha1(&self, arguments: &Arguments) -> Cmd {
        arguments.command("EVALSHA", &self.sha1)
    }

    /// Runs it by its text, which leaves it on the node that has the keys.
    pub(super) fn by_text(&self, arguments: &Arguments) -> Cmd {
        arguments.command("EVAL", self.text)
    }
}

/// What a script is run with.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    keys: Vec<String>,
    rest: Vec<Vec<u8>>,
}

impl Arguments {
    pub(super) fn keys<const N: usize>(keys: [String; N]) -> Self {
        Self { keys: keys.into(), rest: Vec::new() }
    }

    pub(super) fn bytes(mut self, argument: &[u8]) -> Self {
        self.rest.push(argument.to_vec());
        self
    }

    pub(super) fn text(self, argument: &str) -> Self {
        self.bytes(argument.as_bytes())
    }

    pub(super) fn number(self, argument: u64) -> Self {
        self.text(&argument.to_string())
    }

    /// The slot of all keys.
    pub(super) fn slot(&self) -> u16 {
        redis_link::slot(self.keys.first().map_or(&[], String::as_bytes))
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys);
        for argument in &self.rest {
            command.arg(argument.as_slice());
        }
        command
    }
}

macro_rules! scripts {
    ($($name:ident = $flags:literal $($file:literal)*;)*) => {$(
        pub(super) static $name: LazyLock<Source> = LazyLock::new(|| {
            Source::new(concat!("#!lua", $flags, "\n", $(include_str!($file)),*))
        });
    )*};
}

scripts! {
    LOCK = "" "clock.lua" "grant.lua" "queue.lua" "lock.lua";
    RENEW = " flags=allow-oom" "clock.lua" "grant.lua" "renew.lua";
    UNLOCK = " flags=allow-oom" "clock.lua" "grant.lua" "queue.lua" "unlock.lua";
    LEAVE = " flags=allow-oom" "clock.lua" "grant.lua" "queue.lua" "leave.lua";
    PEEK = " flags=no-writes" "clock.lua" "value.lua" "peek.lua";
    BEGIN = "" "clock.lua" "grant.lua" "value.lua" "begin.lua";
    FAIL = "" "clock.lua" "grant.lua" "fail.lua";
    PUBLISH = "" "clock.lua" "grant.lua" "publish.lua";
    INVALIDATE = " flags=allow-oom" "clock.lua" "grant.lua" "invalidate.lua";
    REPLACE = "" "writer.lua" "replace.lua";
    STAGE = "" "stage.lua";
    COMMIT = " flags=allow-oom" "writer.lua" "commit.lua";
}

//! The Lua scripts. Each is atomic and works on one slot. Those that drain run also when Redis is over its memory
//! limit; `admit.lua`, with which recording begins, does not.

use std::sync::LazyLock;

use redis::Script;

macro_rules! scripts {
    ($($name:ident, $sha1:ident => $file:literal;)*) => {$(
        pub(super) static $name: LazyLock<Script> =
            LazyLock::new(|| Script::new(include_str!($file)));

        #[doc = concat!("The SHA1 by which Redis knows `", $file, "`.")]
        #[must_use]
        pub fn $sha1() -> &'static str {
            $name.get_hash()
        }
    )*};
}

scripts! {
    ADMIT, admit_sha1 => "admit.lua";
    ATTEST, attest_sha1 => "attest.lua";
    CHECK_IN, check_in_sha1 => "check_in.lua";
    CLAIM, claim_sha1 => "claim.lua";
    COMPACT, compact_sha1 => "compact.lua";
    ACKNOWLEDGE, acknowledge_sha1 => "acknowledge.lua";
    EXTEND, extend_sha1 => "extend.lua";
    QUARANTINE, quarantine_sha1 => "quarantine.lua";
    REQUEUE, requeue_sha1 => "requeue.lua";
    DISCARD, discard_sha1 => "discard.lua";
}

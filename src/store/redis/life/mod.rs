//! The steps in the life of a minute that both layouts share, each with its script.

mod draining;
mod quarantine;
mod reading;
mod recording;

use super::keys::{Place, Scope};
use super::scripts::{SHARED, Source, scripts};

scripts! {
    ADMIT Admit = SHARED + "admit.lua"() Partition[division arrivals] Minute[counts]
        => (name minute series_max overflow retention_ms minute_end_ms user_sets divided);
    ATTEST Attest = SHARED + "attest.lua"() Partition[witness closed stamps]
        => (node known_epoch known_stamp new_epoch known_since is_announced);
    CHECK_IN CheckIn = SHARED + "check_in.lua"()
        Partition[lagging witness stamps claims idle closed outputs minutes]
        => (node lags lease_ms known_epoch known_stamp heard tolerance_ms alive_ms);
    CLAIM TakeClaims = SHARED + "claim.lua"()
        Partition[minutes claims tokens arrivals idle lagging witness stamps]
        => (node grace_ms max_hold_ms lease_ms lapsed_max finished_max looked_max known_epoch known_stamp expected_ms tolerance_ms
            old_max recent_ms);
    ANNOUNCE Announce = SHARED + "announce.lua"() Partition[witness closed stamps] Output[tokens]
        => (node known_epoch known_stamp);
    ACKNOWLEDGE Acknowledge = SHARED + "acknowledge.lua"(to_seal)
        Partition[minutes witness closed claims outputs] Minute[counts] Output[claims tokens] OutputOfMinute[unsent]
        => (name minute token lease_ms kept_ms kept_counts listed_minutes);
    EXTEND Extend = SHARED + "extend.lua"() Output[claims tokens] => (lease_ms);
    QUARANTINE Refuse = "quarantine.lua"(quarantine) Minute[counts] Output[tokens] OutputOfMinute[unsent]
        => (name token entries_max);
    REQUEUE Requeue = "requeue.lua"(quarantine) Partition[outputs] Minute[counts] Output[claims] OutputOfMinute[unsent]
        => (name output);
    DISCARD Discard = "discard.lua"(quarantine) => ();
    DROP_OUTPUT DropOutput = SHARED + "drop_output.lua"()
        Partition[claims tokens quarantine outputs witness closed]
        => (output tag kept_ms kept_counts to_seal);
}

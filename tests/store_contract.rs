//! Tests the contract of every store: the memory store and, in both layouts, a simulated Redis, a real one, and a cluster.
//!
//! Each test gets an empty store, a [`Ground`](ground::Ground), and creates nodes that share its data.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "store_contract"]
mod contract {
    pub(crate) mod admission;
    pub(crate) mod claiming;
    pub(crate) mod compacting;
    pub(crate) mod coverage;
    pub(crate) mod done;
    pub(crate) mod ground;
    pub(crate) mod leases;
    pub(crate) mod life;
    pub(crate) mod names;
    pub(crate) mod outputs;
    pub(crate) mod quarantine;
    pub(crate) mod reading;
    pub(crate) mod recording;
    pub(crate) mod refused;
    pub(crate) mod witness;

    mod prelude {
        pub(crate) use event_data_service::event::{Minute, Partition};
        pub(crate) use event_data_service::store::{
            AdmitRequest, Admitted, Announced, Bucket, CheckIn, Claim, ClaimRequest, Known,
            OutputName, RecordRequest, Records, SealRequest, Seen, StoreError, Testimony,
        };
        pub(crate) use testing::prelude::*;

        pub(crate) use super::ground::{
            AT_ONCE, Counts, Event, Ground, Node, RETENTION, SEED_MINUTE, bucket, event, model,
            only, partitions, records, series_of_one_partition,
        };
    }
}

use contract::ground::Ground;
use event_data_service::store::redis::Layout;

macro_rules! suite {
    (every { $($every:tt)* } shared { $($shared:tt)* }) => {
        tests! { memory, super::Ground::memory(); $($every)* }
        tests! { lua, super::Ground::lua(super::Layout::Sets); $($every)* $($shared)* }
        tests! { lua_log, super::Ground::lua(super::Layout::Log); $($every)* $($shared)* }
        tests! { redis, super::Ground::redis(super::Layout::Sets); $($every)* $($shared)* }
        tests! { redis_log, super::Ground::redis(super::Layout::Log); $($every)* $($shared)* }
        tests! { cluster, super::Ground::cluster(super::Layout::Sets); $($every)* $($shared)* }
        tests! { cluster_log, super::Ground::cluster(super::Layout::Log); $($every)* $($shared)* }
    };
}

macro_rules! tests {
    ($store:ident, $ground:expr; $($module:ident: $($name:ident)*;)*) => {
        mod $store {
            use super::contract;

            $($(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    contract::$module::$name(&$ground).await;
                }
            )*)*
        }
    };
}

suite! {
    every {
        admission:
            the_first_series_are_admitted_and_the_others_refused_for_good
            nodes_that_ask_at_the_same_time_agree
            an_admission_outlives_the_counting_of_the_minute
            a_refusal_outlives_the_minute_and_nothing_more_is_left
            an_admission_that_nobody_uses_ends_by_itself
            each_minute_has_places_of_its_own
            gathered_events_of_different_series_stay_apart
            the_users_of_a_series_are_told
            a_minute_that_was_full_stays_full_when_the_cap_is_raised
            an_admission_that_is_used_lasts_as_long_as_its_minute
            counts_wait_for_their_output_although_their_series_was_admitted_late
            what_is_not_told_of_users_at_once_can_be_counted;
        recording:
            the_same_batch_again_changes_nothing
            every_copy_is_told
            counts_are_those_of_a_naive_model
            nodes_may_record_at_the_same_time;
        claiming:
            a_minute_that_is_not_over_is_not_claimed
            the_oldest_minute_that_is_not_done_is_told_wherever_it_is
            a_minute_is_claimed_when_it_was_idle_for_the_grace
            a_minute_is_held_no_longer_than_max_hold_for_a_node_that_lags
            a_minute_that_is_never_idle_is_claimed_after_max_hold
            the_lowest_minute_comes_first
            a_minute_that_has_just_ended_comes_before_any_number_of_old_ones
            old_minutes_that_fill_for_ever_do_not_hold_back_the_others
            a_minute_that_still_fills_does_not_hold_back_a_later_one
            a_claimed_minute_is_not_claimed_twice
            nothing_finished_is_claimed_when_none_is_asked_for;
        leases:
            every_lapsed_claim_is_taken_over_in_portions
            compacting_and_acknowledging_renew_the_lease;
        compacting:
            compaction_goes_in_steps
            counts_are_fixed_once
            a_claim_that_lapses_half_way_is_sealed_to_the_same_counts
            what_comes_while_a_minute_is_sealed_is_counted_or_late
            a_late_event_meets_its_counts_however_long_it_waits
            unsent_counts_come_complete_in_pages
            a_minute_that_no_output_waits_for_is_closed_when_it_is_sealed;
        done:
            a_claim_ends_when_nothing_is_left
            only_the_counts_remain
            a_late_event_leads_to_a_claim_that_ends_with_nothing_sent;
        outputs:
            each_output_gets_every_count_at_its_own_pace
            the_first_output_that_has_all_closes_the_minute
            lapsed_claims_are_taken_over_for_the_outputs_that_are_asked_for
            a_new_output_starts_with_what_is_sealed_from_then_on;
        reading:
            open_and_fixed_counts_are_read_and_nothing_is_changed
            late_events_are_not_told_as_open
            what_comes_while_somebody_looks_is_seen_soon
            much_is_read_in_pages_and_the_newest_minutes_come_first;
        names:
            hostile_names_stay_apart
            the_same_minute_of_two_days_does_not_mix
            minutes_around_midnight_do_not_mix;
        witness:
            what_was_closed_stays_closed_when_its_counts_are_forgotten
            an_old_minute_with_events_is_not_passed_by_newer_ones
            an_old_minute_that_waits_is_not_passed_by_newer_ones
            a_clock_that_is_not_as_expected_closes_nothing;
    }
    // Only for stores that several processes can share: takeover, attestation and operators.
    shared {
        admission:
            counts_that_were_forgotten_are_sent_again_although_their_series_was_admitted_again;
        coverage:
            what_each_node_has_seen_is_told_and_telling_it_again_changes_nothing
            what_was_seen_outlives_the_minute_and_is_forgotten_by_itself;
        claiming:
            while_a_node_lags_idle_minutes_stay_open
            a_partition_has_work_until_every_output_has_its_counts
            a_node_lags_for_as_long_as_it_says_if_it_says_no_more;
        leases:
            extending_renews_and_shortens
            a_lapsed_claim_is_taken_over_and_the_old_one_changes_nothing;
        life:
            a_series_lives_as_the_table_says;
        refused:
            quarantined_counts_keep_the_message
            the_room_of_the_quarantine_is_bounded;
        quarantine:
            the_quarantine_is_read_in_pages
            counts_sent_again_come_out_as_they_were
            counts_sent_again_are_remembered_when_the_store_has_forgotten_them
            counts_sent_again_under_a_claim_keep_it_open
            counts_may_be_refused_again
            only_what_was_seen_is_forgotten;
        outputs:
            what_was_sealed_for_another_output_is_sent_by_who_has_it
            each_output_has_a_quarantine_of_its_own
            what_waits_for_an_output_that_is_gone_is_dropped_and_nothing_else;
        witness:
            late_events_are_told_again_until_the_node_hears_of_them
            a_claim_that_is_lost_announces_nothing
            check_in_returns_whether_a_claim_may_be_due
            closed_minutes_are_told_once_in_the_order_of_closing
            a_check_in_that_comes_after_a_newer_one_ends_no_report_of_lag
            a_minute_that_is_handed_back_seals_nothing_new
            a_store_that_lacks_what_a_node_has_seen_grants_nothing
            a_stamp_grows_with_every_check_in
            what_is_about_to_be_written_is_heard_by_every_node_that_is_alive
            a_minute_that_is_handed_back_as_announced_is_heard_as_such;
    }
}

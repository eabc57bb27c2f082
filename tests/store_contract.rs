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
    pub(crate) mod windows;
    pub(crate) mod witness;
    pub(crate) mod zeros;

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
            series_beyond_the_cap_are_rejected_for_good
            nodes_that_ask_at_the_same_time_agree
            admission_outlives_sealing
            rejection_outlives_the_minute
            unused_admission_expires
            each_minute_has_its_own_cap
            gathered_events_of_different_series_stay_apart
            admission_returns_the_users_of_a_series
            raising_the_cap_does_not_reopen_a_full_minute
            used_admission_lasts_as_long_as_its_minute
            counts_of_a_late_series_wait_for_their_output
            users_unknown_at_admission_can_be_counted;
        recording:
            recording_a_batch_twice_has_no_effect
            duplicates_are_reported
            counts_match_a_naive_model
            nodes_can_record_concurrently;
        claiming:
            unfinished_minute_is_not_claimed
            backlog_reports_the_oldest_unfinished_minute
            idle_minute_is_claimed_after_the_grace_period
            lagging_node_holds_a_minute_for_at_most_max_hold
            busy_minute_is_claimed_after_max_hold
            lowest_minute_is_claimed_first
            recent_minute_is_claimed_before_old_minutes
            busy_old_minutes_do_not_block_other_minutes
            busy_minute_does_not_block_a_later_minute
            claimed_minute_is_not_claimed_again
            finished_max_of_zero_claims_no_finished_minute;
        windows:
            sealed_users_are_kept_until_acknowledged
            sealed_users_do_not_depend_on_the_node
            minute_is_added_to_a_window_once
            open_window_is_read_with_all_its_minutes
            sealed_window_accepts_no_more_minutes
            window_waits_for_its_minutes
            lagging_node_holds_a_window;
        leases:
            lapsed_claims_are_taken_over_in_bounded_portions
            compact_and_acknowledge_renew_the_lease;
        compacting:
            compaction_takes_several_steps
            counts_are_sealed_once
            takeover_halfway_seals_the_same_counts
            events_during_sealing_are_counted_or_late
            late_event_finds_its_counts_at_any_time
            unsent_counts_are_read_completely_in_pages
            minute_without_outputs_is_closed_by_sealing;
        done:
            claim_ends_with_the_last_series
            only_counts_remain_at_the_end
            claim_for_a_late_event_ends_without_sending;
        outputs:
            each_output_gets_every_count_independently
            first_complete_output_closes_the_minute
            lapsed_claims_are_taken_over_for_requested_outputs
            new_output_starts_with_the_next_sealed_counts;
        reading:
            reading_open_and_sealed_counts_changes_nothing
            late_events_are_not_reported_as_open
            events_recorded_between_reads_are_seen_soon
            long_lists_are_paged_with_the_newest_minutes_first;
        names:
            hostile_names_stay_apart
            same_minute_of_two_days_stays_apart
            minutes_around_midnight_stay_apart;
        witness:
            closed_minute_stays_closed_after_its_counts_expire
            newer_minutes_do_not_close_an_old_minute_with_events
            newer_minutes_do_not_close_an_old_unsent_minute
            unexpected_clock_closes_nothing;
        zeros:
            silent_series_gets_zeros_until_it_has_events_again
            takeover_halfway_seals_each_zero_once
            overflow_series_gets_no_zeros_and_prevents_them
            closed_minute_gets_no_zeros;
    }
    // Only for stores that several processes can share: takeover, attestation and operators.
    shared {
        admission:
            lost_counts_are_resent_after_readmission_of_their_series;
        coverage:
            coverage_is_stored_per_node_and_idempotent
            coverage_outlives_the_minute_and_expires;
        claiming:
            idle_minutes_stay_open_while_a_node_lags
            partition_has_work_until_every_output_has_its_counts
            report_of_lag_expires_with_its_lease;
        leases:
            extend_renews_or_shortens_a_lease
            former_holder_of_a_lapsed_claim_changes_nothing;
        life:
            series_goes_through_the_documented_states;
        refused:
            quarantined_counts_keep_the_servers_message
            quarantine_is_bounded;
        quarantine:
            quarantine_is_read_in_pages
            requeued_counts_are_unchanged
            requeue_restores_lost_counts
            requeue_keeps_a_claim_open
            counts_can_be_quarantined_again
            discard_removes_only_listed_counts;
        outputs:
            counts_of_another_output_are_sent_by_a_node_that_has_it
            each_output_has_its_own_quarantine
            dropping_an_output_drops_only_its_counts;
        windows:
            window_that_lacks_a_minute_is_marked;
        witness:
            late_events_are_reported_until_a_reply_arrives
            lost_claim_announces_nothing
            check_in_returns_whether_a_claim_may_be_due
            closed_minutes_are_reported_once_in_order_of_closing
            any_number_of_nodes_can_start
            delayed_check_in_does_not_end_a_report_of_lag
            attested_minute_seals_nothing_new
            store_that_lost_data_grants_no_claims
            stamp_grows_with_every_check_in
            announcement_reaches_every_live_node
            attested_announcement_is_reported_as_announced;
    }
}

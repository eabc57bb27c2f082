//! Scripts with one change that the simulation must catch, with the first seed that catches it and the expected violations.

use super::mutants::{Mutant, ScriptMutant};

macro_rules! mutants {
    ($($name:ident: $file:literal, $from:literal => $to:literal, seed $seed:literal, $($reason:literal)|+;)*) => {$(
        #[test]
        fn $name() {
            let mutant = ScriptMutant {
                file: $file,
                code: include_str!(concat!("../../src/store/redis/", $file)),
                from: $from,
                to: $to,
            };
            crate::caught(Mutant::Script(mutant), $seed, &[$($reason),+]);
        }
    )*};
}

mutants! {
    // Claims and leases.
    a_lease_for_good: "life/claim.lua", "now + lease_ms, name)" => "now + 1e12, name)", seed 9, "still not done";
    a_claim_that_holds_is_taken_over: "life/claim.lua", "'-inf', now, 'LIMIT', 0, most" => "'-inf', '+inf', 'LIMIT', 0, most", seed 1, "although its lease lasts";
    one_token_for_all: "life/claim.lua", "token_of(node, number)\n" => "token_of(node, 1)\n", seed 1, "did not grow";
    a_minute_that_is_not_over: "life/claim.lua", "math.floor(now / 60000) - 1" => "math.floor(now / 60000)", seed 1, "before its end";
    a_minute_that_is_not_idle: "life/claim.lua", "now - since >= grace_ms" => "true", seed 1, "although an event came";
    arrivals_that_are_not_looked_at: "life/claim.lua", "local is_news = last_count ~= count" => "local is_news = not last_count", seed 1, "although an event came";
    recent_minutes_with_the_old_ones: "life/claim.lua", "'WITHSCORES'),\n  finished_max, false)" => "'WITHSCORES'),\n  0, false)", seed 1, "is not claimed at";
    a_minute_that_leaves_before_it_is_claimed: "life/claim.lua", "redis.call('ZADD', claims .. of, now + lease_ms, name)" => "", seed 1, "no claim will find it";
    // The nodes' knowledge.
    a_check_in_of_one_who_knows_more: "life/check_in.lua", "if forgot(own) then" => "if false then", seed 80, "nobody recorded again";
    a_node_that_counts_as_dead: "life/check_in.lua", "now + alive_ms, late)" => "0, late)", seed 1, "is said to be heard of by all";
    a_node_that_counts_as_told: "life/check_in.lua", "put_stamp(node, stamp, tonumber(heard)" => "put_stamp(node, stamp, 1e9", seed 1, "is said to be heard of by all";
    late_events_that_are_forgotten_by_a_check_in: "life/check_in.lua", "now + alive_ms, late)" => "now + alive_ms, 0)", seed 1, "has counted";
    an_announcement_that_nobody_waits_for: "life/announce.lua", "state = 1" => "state = 2", seed 1, "is said to be heard of by all";
    what_is_handed_back_stays_open: "life/attest.lua", "for i = REST, #ARGV do" => "for i = REST, 0 do", seed 21, "the compaction of";
    // Sealing.
    compact_without_a_token: "sets/compact.lua", "if redis.call('HGET', tokens, name) ~= token then" => "if false then", seed 100, "a stale token";
    events_are_users: "sets/compact.lua", "redis.call('SCARD', of_events)" => "redis.call('SCARD', of_users)", seed 3, "the counts of";
    sets_that_stay: "sets/compact.lua", "redis.call('UNLINK', ...)" => "", seed 3, "the sets of";
    counts_that_are_overwritten: "sealing.lua", "if is_late or (known and known ~= '') then" => "if is_late then", seed 32, "the compaction of";
    a_closed_minute_that_goes_on_sealing: "sealing.lua", "if is_late or (known" => "if (known", seed 21, "the compaction of";
    late_events_that_are_not_told: "sealing.lua", "late = late + string.match(values[place], '%d+$')" => "", seed 1, "the compaction of";
    counts_that_nobody_sends: "sealing.lua", "redis.call('SADD', base .. 'unsent:' .. output, ...)" => "", seed 1, "the outputs that lack";
    an_output_that_is_not_listed: "sealing.lua", "redis.call('SADD', outputs, output)" => "", seed 23, "still not done";
    a_claim_to_send_that_another_has: "sealing.lua", " and not redis.call('ZSCORE', claims .. ':' .. output, name)" => "", seed 1, "although its lease lasts";
    arrivals_that_stay: "sealing.lua", "redis.call('HDEL', arrivals, name)" => "", seed 1, "more is left than counts";
    a_claim_to_seal_that_does_not_end: "sealing.lua", "redis.call('ZREM', claims, name)" => "", seed 1, "is not held by whom";
    a_step_that_does_not_renew_the_lease: "sealing.lua", "redis.call('ZADD', claims, 'XX', deadline, name)" => "", seed 1486, "although its lease lasts";
    // Logs.
    cut_without_a_token: "counted/cut.lua", "if redis.call('HGET', tokens, name) ~= token then" => "if false then", seed 23, "a stale token";
    a_cut_made_anew_when_a_part_is_sealed: "counted/cut.lua", "if not done or done == '0' then" => "if true then", seed 14, "the compaction of";
    seal_without_a_token: "counted/seal.lua", "if redis.call('HGET', tokens, name) ~= token then" => "if false then", seed 413, "a stale token";
    a_cut_that_stays: "counted/seal.lua", "redis.call('UNLINK', cut)" => "", seed 1, "the compaction of";
    a_log_that_stays: "counted/seal.lua", "redis.call('SREM', logs, log)" => "", seed 1, "the compaction of";
    logs_that_came_since_are_not_told: "counted/seal.lua", "left = redis.call('SCARD', logs)" => "left = 0", seed 32, "the compaction of";
    a_cut_log_that_takes_frames: "log/append.lua", " and redis.call('HEXISTS', cut, log_name) == 0" => "", seed 32, "the compaction of";
    a_log_of_another_length: "log/append.lua", "redis.call('LLEN', log) == tonumber(length) and " => "", seed 1, "the compaction of";
    arrivals_that_are_not_counted: "log/append.lua", "redis.call('HINCRBY', arrivals, name, events)" => "", seed 1, "although an event came";
    // Sending.
    acknowledge_without_a_token: "life/acknowledge.lua", "if redis.call('HGET', own_tokens, name) ~= token then" => "if false then", seed 10, "a stale token";
    what_one_output_has_counts_for_all: "life/acknowledge.lua", "redis.call('SREM', unsent, ...)" => "for _, output in ipairs(redis.call('SMEMBERS', outputs)) do redis.call('SREM', string.gsub(unsent, '[^:]*$', output), ...) end", seed 1, "ended:";
    counts_that_go_with_the_first_output: "life/acknowledge.lua", "if not is_awaited(name, own_claims) then" => "redis.call('UNLINK', counts)\n  if false then", seed 1, "the counts of";
    counts_that_expire_while_an_output_lacks_them: "life/acknowledge.lua", "if not is_awaited(name, own_claims) then" => "if true then", seed 130, "the counts of";
    a_minute_that_an_output_has_stays_open: "life/acknowledge.lua", "close(minute)" => "redis.call('ZREM', closed, minute)", seed 30, "the compaction of";
    a_claim_that_ends_too_soon: "life/acknowledge.lua", "if redis.call('SCARD', unsent) > 0 then" => "if false then", seed 3, "ended:";
    an_acknowledgement_that_does_not_renew: "life/acknowledge.lua", "redis.call('ZADD', own_claims, 'XX'" => "redis.call('ZADD', own_claims, 'NX'", seed 235, "although its lease lasts";
    quarantine_without_a_token: "life/quarantine.lua", "if redis.call('HGET', own_tokens, name) ~= token then" => "if false then", seed 162, "a stale token";
    a_refused_count_that_stays_unsent: "life/quarantine.lua", "redis.call('SREM', unsent, series)" => "", seed 2, "is unsent";
    a_refused_count_that_is_not_kept: "life/quarantine.lua", "redis.call('HSET', own_quarantine, entry," => "redis.call('HGET', own_quarantine, entry .. ", seed 2, "is unsent";
    extend_without_a_token: "life/extend.lua", "if redis.call('HGET', own_tokens, ARGV[i]) == ARGV[i + 1] then" => "if true then", seed 14, "a stale token";
    // Windows.
    a_minute_that_is_added_twice: "windows/commit.lua", "if redis.call('GETBIT', mark, offset) == 1 then" => "if false then", seed 3, "the counts of";
    an_added_minute_that_is_not_noted: "windows/commit.lua", "redis.call('SETBIT', mark, offset, 1)" => "", seed 3, "the counts of";
    a_minute_whose_users_are_not_added: "windows/commit.lua", "redis.call('SADD', logs, log)" => "", seed 1, "the compaction of";
    a_closed_window_that_takes_minutes: "windows/commit.lua", "if redis.call('ZSCORE', closed, minute) or (since and tonumber(minute) < since) then" => "if false then", seed 2021, "which is closed";
    a_window_with_open_minutes: "windows/settle.lua", "if redis.call('ZCOUNT', minutes, first, last) > 0 or" => "if", seed 20, "had something to do";
    a_window_with_claimed_minutes: "windows/settle.lua", "is_claimed(claims) or" => "", seed 22, "had something to do";
    a_window_without_minutes_that_are_not_added: "windows/settle.lua", " or is_claimed(claims .. ':rollup')" => "", seed 3, "had something to do";
    a_window_that_is_not_over: "windows/settle.lua", "if now - (last + 1) * 60000 < wait_ms then" => "if false then", seed 83, "which is too early";
    a_window_that_does_not_wait_for_lag: "windows/settle.lua", "wait_ms = math.max(wait_ms, tonumber(max_hold_ms))" => "", seed 83, "which is too early";
    a_window_that_not_all_have_heard_of: "windows/settle.lua", "newest <= heard_by_others(now) and 2 or 1" => "2", seed 2, "is said to be heard of by all";
    a_window_without_lost_minutes_that_is_not_marked: "windows/settle.lua", "with_events[#with_events + 1] = one" => "", seed 19, "was sealed with";
    users_that_are_not_kept: "sets/compact.lua", "redis.call('RENAME', of_users, kept)" => "", seed 4, "the counts of";
    logs_that_are_not_kept: "counted/seal.lua", "local is_kept = keeps_users" => "local is_kept = false", seed 2, "the counts of";
    users_that_go_with_the_first_output: "life/acknowledge.lua", "if output == 'rollup' then\n  for i" => "if true then\n  for i", seed 4, "the counts of";
    logs_that_go_with_the_first_output: "life/acknowledge.lua", "if output == 'rollup' then\n  for _" => "if true then\n  for _", seed 2, "the counts of";
    empty_minutes_that_are_not_handed_back: "life/attest.lua", "for i = REST, #ARGV do" => "for i = REST, kind == 'empty' and 0 or #ARGV do", seed 183, "the compaction of";
    // Admission.
    more_series_than_the_cap: "life/admit.lua", "if not full and admitted < most then" => "if not full then", seed 1, "has more series";
    an_admission_that_ends: "life/admit.lua", "math.max(expires, kept_ms + ahead)" => "1", seed 123, "the counts of";
}

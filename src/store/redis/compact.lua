#!lua flags=allow-oom
-- Turns the sets of some series of a claimed minute into counts, once, and drops the sets. With the last set the claim ends,
-- and its holder gets one for each output that lacks counts, to send them.
--
-- KEYS  claims, tokens, event_types, counts, witness, closed, arrivals, outputs, stamps; of each output its claims, tokens and unsent
-- ARGV  minute's name, token, most series, lease ms, what the names of the minute's keys begin with, epoch minute, how long
--       to keep the counts in ms, how many counts to keep for a minute of that, outputs…
-- Gives {series sealed, events that the caller found late in all, series left, token of the claims to send, their outputs}, or
--       nothing when the claim is not held
--
-- The sets are read before anything is written, and the counts are written before the sets go. The sets, and what is
-- kept for outputs that the caller does not know, cannot be declared in KEYS, since event_types and outputs name them; they have
-- the same hash tag.
local _, tokens, event_types = unpack(KEYS)
local base = ARGV[5]
if redis.call('HGET', tokens, ARGV[1]) ~= ARGV[2] then
  return false
end
local ours = {unpack(ARGV, 9)}

local series = redis.call('SRANDMEMBER', event_types, ARGV[3])
local values, sets = {}, {}
for i, name in ipairs(series) do
  local of_users, of_events = base .. 'unique_user:' .. name, base .. 'cumulative_user:' .. name
  values[i] = redis.call('SCARD', of_users) .. ':' .. redis.call('SCARD', of_events)
  sets[2 * i - 1], sets[2 * i] = of_users, of_events
end
local sealed, late = seal(KEYS, ARGV, ours, series, values)
in_slices(sets, function(...)
  redis.call('UNLINK', ...)
end)
in_slices(series, function(...)
  redis.call('SREM', event_types, ...)
end)
return end_step(KEYS, ARGV, ours, sealed, late, redis.call('SCARD', event_types))

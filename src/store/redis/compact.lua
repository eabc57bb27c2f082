#!lua flags=allow-oom
-- Turns the sets of some series of a claimed minute into counts, once, and drops the sets. With the last set the claim ends,
-- and its holder gets one for each output that lacks counts, to send them.
--
-- KEYS  claims, tokens, event_types, counts, witness, closed, arrivals, outputs; of each output its claims, tokens and unsent
-- ARGV  minute's name, token, most series, lease ms, what the names of the minute's keys begin with, epoch minute, how long
--       to keep the counts in ms, how many counts to keep for a minute of that, outputs…
-- Gives {series sealed, events that came late, series left, token of the claims to send, their outputs}, or nothing when the
--       claim is not held
--
-- Per series the sets are read before anything is written, and the counts are written before the sets go. The sets, and what is
-- kept for outputs that the caller does not know, cannot be declared in KEYS, since event_types and outputs name them; they have
-- the same hash tag.
local _, tokens, event_types, counts, witness, closed, _, outputs = unpack(KEYS)
local base, minute = ARGV[5], ARGV[6]
if redis.call('HGET', tokens, ARGV[1]) ~= ARGV[2] then
  return false
end
local ours = {unpack(ARGV, 9)}
local seal = sealer(counts, witness, closed, outputs, base, minute, ours)

local sealed, late = 0, 0
for _, series in ipairs(redis.call('SRANDMEMBER', event_types, ARGV[3])) do
  local unique_key = base .. 'unique_user:' .. series
  local cumulative_key = base .. 'cumulative_user:' .. series
  local unique = redis.call('SCARD', unique_key)
  local cumulative = redis.call('SCARD', cumulative_key)
  if seal(series, unique, cumulative) then
    sealed = sealed + 1
  else
    late = late + cumulative
  end
  redis.call('UNLINK', unique_key, cumulative_key)
  redis.call('SREM', event_types, series)
end
return end_step(KEYS, ARGV, ours, sealed, late, redis.call('SCARD', event_types))

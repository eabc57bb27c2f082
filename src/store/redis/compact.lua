#!lua flags=allow-oom
-- Turns the sets of some series of a claimed minute into counts, once, and drops the sets.
--
-- KEYS  claims, tokens, event_types, counts, unsent, witness, closed
-- ARGV  minute's name, token, most series, lease ms, what the names of the sets begin with, epoch minute
-- Gives {series sealed, events that came late, series left}, or nothing when the claim is not held
--
-- Per series the sets are read before anything is written, `unsent` is written before `counts`, and both
-- before the sets go: an error between two commands (a slot that moves) leaves a state that the next call
-- fixes. The sets cannot be declared in KEYS, since event_types names them; they have the same hash tag.
--
-- A minute that was closed seals nothing new: what its counts were may be forgotten, and is published.
local claims, tokens, event_types, counts, unsent, witness, closed = unpack(KEYS)
local name, token, base, minute = ARGV[1], ARGV[2], ARGV[5], ARGV[6]
if redis.call('HGET', tokens, name) ~= token then
  return false
end
local since = tonumber(redis.call('HGET', witness, 'since'))
local is_closed = redis.call('ZSCORE', closed, minute) or (since and tonumber(minute) < since)

local sealed, late = 0, 0
for _, series in ipairs(redis.call('SRANDMEMBER', event_types, ARGV[3])) do
  local unique_key = base .. 'unique_user:' .. series
  local cumulative_key = base .. 'cumulative_user:' .. series
  local unique = redis.call('SCARD', unique_key)
  local cumulative = redis.call('SCARD', cumulative_key)
  -- Empty: admitted, and not sealed before.
  if not is_closed and redis.call('HSTRLEN', counts, series) == 0 then
    redis.call('SADD', unsent, series)
    redis.call('HSET', counts, series, unique .. ':' .. cumulative)
    sealed = sealed + 1
  else
    late = late + cumulative
  end
  redis.call('UNLINK', unique_key, cumulative_key)
  redis.call('SREM', event_types, series)
end
if sealed > 0 then
  -- A minute that came back may have counts that were about to be forgotten.
  redis.call('PERSIST', counts)
end

local time = redis.call('TIME')
redis.call('ZADD', claims, 'XX', math.floor(time[1] * 1000 + time[2] / 1000) + ARGV[4], name)
return {sealed, late, redis.call('SCARD', event_types)}

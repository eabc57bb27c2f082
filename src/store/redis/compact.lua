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
-- Per series the sets are read before anything is written, `unsent` is written before `counts`, and both
-- before the sets go; the claims to send are there before the claim to seal goes: an error between two commands (a slot
-- that moves) leaves a state that the next call fixes. The sets, and what is kept for outputs that the caller does not know,
-- cannot be declared in KEYS, since event_types and outputs name them; they have the same hash tag.
--
-- A minute that was closed seals nothing new: what its counts were may be forgotten, and is published.
local claims, tokens, event_types, counts, witness, closed, arrivals, outputs = unpack(KEYS)
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
    for i = 9, #ARGV do
      if sealed == 0 then
        redis.call('SADD', outputs, ARGV[i])
      end
      redis.call('SADD', base .. 'unsent:' .. ARGV[i], series)
    end
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
local deadline = math.floor(time[1] * 1000 + time[2] / 1000) + ARGV[4]
local left = redis.call('SCARD', event_types)
if left > 0 then
  redis.call('ZADD', claims, 'XX', deadline, name)
  return {sealed, late, left, '', {}}
end

local node, number = string.match(token, '^(.*)|(%d+)$')
token = string.format('%s|%.0f', node, math.max(time[1] * 1000000 + time[2], number + 1))
local function lacks(output)
  return redis.call('SCARD', base .. 'unsent:' .. output) > 0 and not redis.call('ZSCORE', claims .. ':' .. output, name)
end
local granted = {}
for i = 9, #ARGV do
  if lacks(ARGV[i]) then
    redis.call('HSET', tokens .. ':' .. ARGV[i], name, token)
    redis.call('ZADD', claims .. ':' .. ARGV[i], deadline, name)
    granted[#granted + 1] = ARGV[i]
  end
end
-- An earlier step may have been that of a node with other outputs. Whoever has them takes these claims over.
for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
  if lacks(output) then
    redis.call('ZADD', claims .. ':' .. output, 0, name)
  end
end
if not is_awaited(outputs, claims, name) then
  close(closed, witness, minute)
  let_expire(counts, ARGV[7], ARGV[8])
end
redis.call('HDEL', arrivals, name)
redis.call('ZREM', claims, name)
redis.call('HDEL', tokens, name)
return {sealed, late, 0, token, granted}

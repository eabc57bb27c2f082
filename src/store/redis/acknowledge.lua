#!lua flags=allow-oom
-- Marks counts of a claimed minute as written, and ends the claim when nothing is left to do.
--
-- KEYS  claims, tokens, arrivals, event_types, counts, unsent
-- ARGV  minute's name, token, lease ms, how long to keep the counts in ms, series…
-- Gives 1 when the minute is done and the claim ended, 0 when not, or nothing when the claim is not held
local claims, tokens, arrivals, event_types, counts, unsent =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local name, token = ARGV[1], ARGV[2]
if redis.call('HGET', tokens, name) ~= token then
  return false
end

-- In slices: unpack has a limit.
for from = 5, #ARGV, 1000 do
  redis.call('SREM', unsent, unpack(ARGV, from, math.min(from + 999, #ARGV)))
end

if redis.call('SCARD', event_types) == 0 and redis.call('SCARD', unsent) == 0 then
  redis.call('PEXPIRE', counts, ARGV[4])
  redis.call('HDEL', arrivals, name)
  redis.call('ZREM', claims, name)
  redis.call('HDEL', tokens, name)
  return 1
end
local time = redis.call('TIME')
redis.call('ZADD', claims, 'XX', math.floor(time[1] * 1000 + time[2] / 1000) + ARGV[3], name)
return 0

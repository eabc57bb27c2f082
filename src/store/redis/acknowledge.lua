#!lua flags=allow-oom
-- Marks counts of a claimed minute as written, and ends the claim when nothing is left to do.
--
-- KEYS  claims, tokens, arrivals, event_types, counts, unsent, minutes, witness, closed
-- ARGV  minute's name, token, lease ms, how long to keep the counts in ms, how many counts to keep for a minute of that,
--       epoch minute, the minutes for which it is known that they are closed, series…
-- Gives 1 when the minute is done and closed and the claim ended, 0 when not, or nothing when the claim is not held
local claims, tokens, arrivals, event_types, counts, unsent, minutes, witness, closed = unpack(KEYS)
local name, token, minute = ARGV[1], ARGV[2], tonumber(ARGV[6])
if redis.call('HGET', tokens, name) ~= token then
  return false
end

-- Closed minutes are not listed for ever: all before `since` count as closed. It follows the newest closed minute, and
-- never passes one that has something to do.
local function forget(newest)
  local known = redis.call('HMGET', witness, 'newest', 'since')
  newest = math.max(newest, tonumber(known[1] or newest))
  redis.call('HSET', witness, 'newest', string.format('%.0f', newest))
  local since = newest - ARGV[7]
  local waiting = tonumber(redis.call('ZRANGE', minutes, 0, 0, 'WITHSCORES')[2])
  if waiting then
    since = math.min(since, waiting)
  end
  local before = tonumber(known[2])
  if redis.call('ZCARD', claims) > 0 or (before and since <= before) then
    return
  end
  redis.call('HSET', witness, 'since', string.format('%.0f', since))
  if before and since - before <= 100 then
    for gone = before, since - 1 do
      redis.call('ZREM', closed, string.format('%.0f', gone))
    end
    return
  end
  for _, one in ipairs(redis.call('ZRANGE', closed, 0, -1)) do
    if tonumber(one) < since then
      redis.call('ZREM', closed, one)
    end
  end
end

-- In slices: unpack has a limit.
for from = 8, #ARGV, 1000 do
  redis.call('SREM', unsent, unpack(ARGV, from, math.min(from + 999, #ARGV)))
end

if redis.call('SCARD', event_types) == 0 and redis.call('SCARD', unsent) == 0 then
  -- The more there are the sooner they go: for questions only, since the minute is closed.
  local share = math.floor(60000 * ARGV[5] / math.max(1, redis.call('HLEN', counts)))
  redis.call('PEXPIRE', counts, math.min(ARGV[4], math.max(share, 60000)))
  redis.call('HDEL', arrivals, name)
  local since = tonumber(redis.call('HGET', witness, 'since'))
  if not (since and minute < since) and not redis.call('ZSCORE', closed, ARGV[6]) then
    redis.call('ZADD', closed, redis.call('HINCRBY', witness, 'sequence', 1), ARGV[6])
  end
  redis.call('ZREM', claims, name)
  redis.call('HDEL', tokens, name)
  forget(minute)
  return 1
end
local time = redis.call('TIME')
redis.call('ZADD', claims, 'XX', math.floor(time[1] * 1000 + time[2] / 1000) + ARGV[3], name)
return 0

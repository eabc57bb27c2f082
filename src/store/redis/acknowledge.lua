#!lua flags=allow-oom
-- Marks counts of a claimed minute as written to an output, and ends the claim when it lacks none.
--
-- KEYS  claims and tokens of the output, event_types, counts, the output's unsent, minutes, witness, closed, claims, outputs
-- ARGV  minute's name, token, lease ms, how long to keep the counts in ms, how many counts to keep for a minute of that,
--       epoch minute, the minutes for which it is known that they are closed, series…
-- Gives 1 when the output has all and the claim ended, 0 when not, or nothing when the claim is not held
--
-- The first output that has all closes the minute, for what it was given is the value of each of these points from then on.
-- Not while there are sets: they are sealed first.
local own, tokens, event_types, counts, unsent, minutes, witness, closed, claims, outputs = unpack(KEYS)
local name, token, minute = ARGV[1], ARGV[2], ARGV[6]
if redis.call('HGET', tokens, name) ~= token then
  return false
end

-- Closed minutes are not listed for ever: all before `since` count as closed. It follows the newest closed minute, and
-- never passes one that has something to do, or that is sealed and that no output has.
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
  if redis.call('ZCARD', claims) > 0 or redis.call('ZCARD', own) > 0 or (before and since <= before) then
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

in_slices(ARGV, function(...)
  redis.call('SREM', unsent, ...)
end, 8)

if redis.call('SCARD', unsent) > 0 then
  local time = redis.call('TIME')
  redis.call('ZADD', own, 'XX', math.floor(time[1] * 1000 + time[2] / 1000) + ARGV[3], name)
  return 0
end
local is_sealed = redis.call('SCARD', event_types) == 0
if is_sealed then
  close(closed, witness, minute)
  if not is_awaited(outputs, claims, name, own) then
    let_expire(counts, ARGV[4], ARGV[5])
  end
end
redis.call('ZREM', own, name)
redis.call('HDEL', tokens, name)
if is_sealed then
  forget(tonumber(minute))
end
return 1

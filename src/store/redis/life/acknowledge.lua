#!lua flags=allow-oom
-- Marks the counts of the given series as written to an output. Once the output has all counts of the minute, ends the
-- claim. Returns 1 if the claim has ended, 0 if counts are still missing, and nothing if the claim is not held.
--
-- Once one output has all counts and nothing is left to seal, the minute is closed, because its points are final.
if redis.call('HGET', own_tokens, name) ~= token then
  return false
end

-- The list of closed minutes is bounded: all minutes before `since` count as closed. `since` follows the newest closed
-- minute, but never passes a minute that has work left, or a sealed minute whose counts no output has.
local function forget(newest)
  local known = redis.call('HMGET', witness, 'newest', 'since')
  newest = math.max(newest, tonumber(known[1] or newest))
  redis.call('HSET', witness, 'newest', whole(newest))
  local since = newest - listed_minutes
  local waiting = tonumber(redis.call('ZRANGE', minutes, 0, 0, 'WITHSCORES')[2])
  if waiting then
    since = math.min(since, waiting)
  end
  local before = tonumber(known[2])
  if redis.call('ZCARD', claims) > 0 or redis.call('ZCARD', own_claims) > 0 or (before and since <= before) then
    return
  end
  redis.call('HSET', witness, 'since', whole(since))
  if before and since - before <= 100 then
    for gone = before, since - 1 do
      redis.call('ZREM', closed, whole(gone))
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
end, REST)
if output == 'rollup' then
  for i = REST, #ARGV do
    redis.call('UNLINK', base .. 'sealed_user:' .. ARGV[i])
  end
end

if redis.call('SCARD', unsent) > 0 then
  local _, now = clock()
  redis.call('ZADD', own_claims, 'XX', now + lease_ms, name)
  return 0
end
if output == 'rollup' then
  for _, log in ipairs(redis.call('HKEYS', kept)) do
    redis.call('UNLINK', base .. 'kept:' .. log)
  end
  redis.call('UNLINK', kept)
end
local is_sealed = redis.call('SCARD', to_seal) == 0
if is_sealed then
  close(minute)
  if not is_awaited(name, own_claims) then
    let_expire(counts)
  end
end
redis.call('ZREM', own_claims, name)
redis.call('HDEL', own_tokens, name)
if is_sealed then
  forget(tonumber(minute))
end
return 1

-- What those scripts share that may be the last to work on a minute; put behind their first line.

-- Whether an output lacks counts of a minute. The one whose claims are `but` is not asked.
local function is_awaited(outputs, claims, name, but)
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    local key = claims .. ':' .. output
    if key ~= but and redis.call('ZSCORE', key, name) then
      return true
    end
  end
  return false
end

-- From now on the minute seals nothing new.
local function close(closed, witness, minute)
  local since = tonumber(redis.call('HGET', witness, 'since'))
  if not (since and tonumber(minute) < since) and not redis.call('ZSCORE', closed, minute) then
    redis.call('ZADD', closed, redis.call('HINCRBY', witness, 'sequence', 1), minute)
  end
end

-- Counts that no output lacks are for questions only. The more there are the sooner they go.
local function let_expire(counts, kept_ms, kept_counts)
  local share = math.floor(60000 * kept_counts / math.max(1, redis.call('HLEN', counts)))
  redis.call('PEXPIRE', counts, math.min(kept_ms, math.max(share, 60000)))
end

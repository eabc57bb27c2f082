#!lua flags=allow-oom
-- A node reports whether it lags (1: it has events of the partition that have not been recorded), leaves a stamp, and learns
-- which minutes of the partition have been closed. The clock may go back by `tolerance_ms` unnoticed; the node counts as
-- alive for `alive_ms`. Returns {stamp, current time in ms, sequence, minutes closed since the sequence that the node knows,
-- minutes announced since then, minutes closed since then that had no events, since (empty: from the beginning), 1 if there may be something to claim, total number of
-- events that the node found late}, or nothing if Redis has lost something that the node knows.

-- If there are more stamps than this, one in as many check-ins drops the stamps of nodes that have not been alive for this many
-- ms. It takes a time proportional to the number of nodes.
local STAMPS_MAX, STAMPS_KEPT = 100, 3600000
-- The maximum number of closed minutes in a reply.
local CLOSED_MAX = 1000

local _, now = clock()
local known = redis.call('HMGET', witness, 'clock', 'since')
local own, _, _, late = stamp_of(node)
own = own or 0
if lags == '1' then
  redis.call('HSET', lagging, node, whole(now + lease_ms))
elseif known_epoch == '0' or own <= tonumber(known_stamp) then
  -- A delayed report, sent before the node's last check-in, carries an older stamp and is ignored.
  redis.call('HDEL', lagging, node)
end

if forgot(own) then
  -- The node must attest first.
  return false
end
-- If the clock was set back, brings all deadlines forward by the same amount, so that no lease is extended.
local back = tonumber(known[1] or now) - now
if back > tonumber(tolerance_ms) then
  local function set_back(key)
    local held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do
      redis.call('ZADD', key, whole(held[i + 1] - back), held[i])
    end
  end
  set_back(claims)
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    set_back(claims .. ':' .. output)
  end
  local deadlines = redis.call('HGETALL', lagging)
  for i = 1, #deadlines, 2 do
    redis.call('HSET', lagging, deadlines[i], whole(math.min(tonumber(deadlines[i + 1]), now + lease_ms)))
  end
  redis.call('UNLINK', idle)
  local all = redis.call('HGETALL', stamps)
  for i = 1, #all, 2 do
    local other, heard_by_it, alive_until, found_late = stamp_parts(all[i + 1])
    put_stamp(all[i], other, heard_by_it, math.max(0, alive_until - back), found_late)
  end
end

-- The stamp increases with every check-in while Redis keeps its data. Nodes renew only their own stamps.
local stamp = redis.call('HINCRBY', witness, 'stamp', 1)
redis.call('HSET', witness, 'clock', whole(now))
put_stamp(node, stamp, tonumber(heard), now + alive_ms, late)
if stamp % STAMPS_MAX == 0 and redis.call('HLEN', stamps) > STAMPS_MAX then
  local all = redis.call('HGETALL', stamps)
  for i = 1, #all, 2 do
    local _, _, alive_until = stamp_parts(all[i + 1])
    if alive_until < now - STAMPS_KEPT then
      redis.call('HDEL', stamps, all[i])
    end
  end
end

local sequence = tonumber(heard)
local news = redis.call('ZRANGEBYSCORE', closed, '(' .. heard, '+inf', 'WITHSCORES', 'LIMIT', 0, CLOSED_MAX)
local closed_since, announced_since, empty_since = {}, {}, {}
for i = 1, #news, 2 do
  sequence = tonumber(news[i + 1])
  local list = sequence % 2 == 0 and announced_since or sequence % 4 == 3 and empty_since or closed_since
  list[#list + 1] = tonumber(news[i])
end

-- Returns whether claim.lua may have something to do. This avoids most calls of claim.lua while a minute fills.
local function is_due()
  local first = redis.call('ZRANGE', minutes, 0, 0, 'WITHSCORES')[2]
  if (first and (first + 1) * 60000 <= now) or redis.call('EXISTS', claims, lagging) > 0 then
    return 1
  end
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    if redis.call('EXISTS', claims .. ':' .. output) == 1 then
      return 1
    end
  end
  return 0
end
return {stamp, now, sequence, closed_since, announced_since, empty_since, known[2] or '', is_due(), late}

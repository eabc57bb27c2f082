#!lua flags=allow-oom
-- A node reports whether it lags, leaves a stamp, and hears what was closed: of one partition.
--
-- KEYS  lagging, witness, stamps, claims, idle, closed, outputs, minutes
-- ARGV  node, 1 if it lags: it has events of the partition that are not recorded, lease ms,
--       what it knows: epoch (0: nothing), its last stamp ms, sequence; how far the clock may go back unnoticed in ms
-- Gives {stamp ms, now ms, sequence, minutes closed since that which the node knows, since (empty: from the beginning), 1 if
--       there may be something to claim}; or nothing when Redis lacks what the node knows
local lagging, witness, stamps, claims, idle, closed, outputs, minutes = unpack(KEYS)
local node, lease = ARGV[1], tonumber(ARGV[3])

-- When there are more stamps those of nodes that have not come for this long go.
local STAMPS_MAX, STAMPS_KEPT = 100, 3600000
-- The closed minutes that are given at once.
local CLOSED_MAX = 1000

local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local function ms(number)
  return string.format('%.0f', number)
end

local known = redis.call('HMGET', witness, 'epoch', 'stamp', 'clock', 'since')
local own = tonumber(redis.call('HGET', stamps, node) or '0')
if ARGV[2] == '1' then
  redis.call('HSET', lagging, node, ms(now + lease))
elseif ARGV[4] == '0' or own <= tonumber(ARGV[5]) then
  -- One that was sent before and comes only now, when the node has checked in again, knows an older stamp.
  redis.call('HDEL', lagging, node)
end

if ARGV[4] ~= '0' and (known[1] ~= ARGV[4] or own < tonumber(ARGV[5])) then
  -- Redis went back to what it was before, or is another one. Whoever knows more hands that back first.
  return false
end
-- A stamp never goes back while Redis keeps its data. Each node looks at its own, which no other can renew.
local stamp = ms(math.max(tonumber(known[2] or '0'), now))
redis.call('HSET', witness, 'stamp', stamp, 'clock', ms(now))
redis.call('HSET', stamps, node, stamp)
if redis.call('HLEN', stamps) > STAMPS_MAX then
  local all = redis.call('HGETALL', stamps)
  for i = 1, #all, 2 do
    if tonumber(all[i + 1]) < now - STAMPS_KEPT then
      redis.call('HDEL', stamps, all[i])
    end
  end
end

-- A clock that was set back would keep every deadline for as much longer. What was reported since is right already.
local back = tonumber(known[3] or now) - now
if back > tonumber(ARGV[7]) then
  local function set_back(key)
    local held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #held, 2 do
      redis.call('ZADD', key, ms(held[i + 1] - back), held[i])
    end
  end
  set_back(claims)
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    set_back(claims .. ':' .. output)
  end
  local deadlines = redis.call('HGETALL', lagging)
  for i = 1, #deadlines, 2 do
    redis.call('HSET', lagging, deadlines[i], ms(math.min(tonumber(deadlines[i + 1]), now + lease)))
  end
  redis.call('UNLINK', idle)
end

local sequence = tonumber(ARGV[6])
local news = redis.call('ZRANGEBYSCORE', closed, '(' .. ARGV[6], '+inf', 'WITHSCORES', 'LIMIT', 0, CLOSED_MAX)
local since_then = {}
for i = 1, #news, 2 do
  since_then[#since_then + 1] = tonumber(news[i])
  sequence = tonumber(news[i + 1])
end

-- What claim.lua would look at, or remove: reports of nodes that died. Most of the time a minute only fills, and it is spared.
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
return {tonumber(stamp), now, sequence, since_then, known[4] or '', is_due()}

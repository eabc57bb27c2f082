#!lua flags=allow-oom
-- A node reports whether it lags, leaves a stamp, and hears what was closed: of one partition.
--
-- KEYS  lagging, witness, stamps, claims, idle, closed, outputs, minutes
-- ARGV  node, 1 if it lags: it has events of the partition that are not recorded, lease ms,
--       what it knows: epoch (0: nothing), its last stamp, sequence; how far the clock may go back unnoticed in ms; how long it
--       counts as alive in ms
-- Gives {stamp, now ms, sequence, minutes closed since that which the node knows, minutes announced since then, since (empty: from
--       the beginning), 1 if there may be something to claim, how many events the node found late in all}; or nothing when Redis
--       lacks what the node knows
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

local known = redis.call('HMGET', witness, 'epoch', 'clock', 'since')
local own, _, _, late = stamp_of(stamps, node)
own = own or 0
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
-- A clock that was set back would keep every deadline for as much longer. What was reported since is right already.
local back = tonumber(known[2] or now) - now
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
  local all = redis.call('HGETALL', stamps)
  for i = 1, #all, 2 do
    local stamp, heard, alive_until, found_late = stamp_parts(all[i + 1])
    put_stamp(stamps, all[i], stamp, heard, math.max(0, alive_until - back), found_late)
  end
end

-- The number grows with every check-in while Redis keeps its data, whatever the clock does. Each node looks at its own, which no other
-- can renew.
local stamp = redis.call('HINCRBY', witness, 'stamp', 1)
redis.call('HSET', witness, 'clock', ms(now))
put_stamp(stamps, node, stamp, tonumber(ARGV[6]), now + ARGV[8], late)
if redis.call('HLEN', stamps) > STAMPS_MAX then
  local all = redis.call('HGETALL', stamps)
  for i = 1, #all, 2 do
    local _, _, alive_until = stamp_parts(all[i + 1])
    if alive_until < now - STAMPS_KEPT then
      redis.call('HDEL', stamps, all[i])
    end
  end
end

local sequence = tonumber(ARGV[6])
local news = redis.call('ZRANGEBYSCORE', closed, '(' .. ARGV[6], '+inf', 'WITHSCORES', 'LIMIT', 0, CLOSED_MAX)
local closed_since, announced_since = {}, {}
for i = 1, #news, 2 do
  sequence = tonumber(news[i + 1])
  local list = sequence % 2 == 0 and announced_since or closed_since
  list[#list + 1] = tonumber(news[i])
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
return {stamp, now, sequence, closed_since, announced_since, known[3] or '', is_due(), late}

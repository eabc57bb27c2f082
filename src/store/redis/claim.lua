#!lua flags=allow-oom
-- Claims minutes of one partition, by Redis' clock alone.
--
-- KEYS  minutes, claims, tokens, arrivals, idle, lagging, witness, stamps
-- ARGV  node, grace ms, max_hold ms, lease ms, most lapsed claims, most finished minutes, most minutes looked at,
--       what the node knows: epoch (0: nothing), its last stamp ms; what it expects the clock to show in ms (0: unknown),
--       and how far it may be from that; then each output and the most lapsed claims to send to it
-- Gives a list of {minute's name, token, 1 if taken over from a lapsed claim, output or empty for a claim to seal}; or
--       nothing when Redis lacks what the node knows
--
-- A minute is in `claims` before it leaves `minutes`, so that an error between two commands loses none.
local minutes, claims, tokens, arrivals, idle, lagging, witness, stamps = unpack(KEYS)
local node = ARGV[1]
local grace, max_hold, lease = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lapsed_max, finished_max, looked_max = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local own = tonumber(redis.call('HGET', stamps, node) or '0')
if ARGV[8] ~= '0' and (redis.call('HGET', witness, 'epoch') ~= ARGV[8] or own < tonumber(ARGV[9])) then
  -- Redis went back since the node checked in.
  return false
end
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local granted = {}

-- A clock that was set forward makes minutes look over and idle that are neither, and claims lapsed; one that was set back
-- would give too long a lease. The node sees it when it checks in.
local expected = tonumber(ARGV[10])
local is_expected = expected == 0 or math.abs(now - expected) <= tonumber(ARGV[11])
if not is_expected then
  lapsed_max, finished_max = 0, 0
end

-- A node that is lagging will bring its events, minute by minute. A minute that is idle meanwhile may be one that it has
-- not come to yet, so as long as any node is lagging, only those are closed that were held long enough.
local nodes_lagging = redis.call('HGETALL', lagging)
for i = 1, #nodes_lagging, 2 do
  if tonumber(nodes_lagging[i + 1]) > now then
    grace = math.max(grace, max_hold)
  else
    redis.call('HDEL', lagging, nodes_lagging[i])
  end
end

-- The token is Redis' clock in microseconds, or one more than the last where that is not enough. So it grows
-- also across a failover that lost the last one, and nothing has to be kept when the minute is done.
local function grant(name, taken_over, output)
  local of = output == '' and '' or ':' .. output
  local last = redis.call('HGET', tokens .. of, name)
  local number = now_us
  if last then
    number = math.max(number, tonumber(string.match(last, '|(%d+)$')) + 1)
  end
  local token = node .. '|' .. string.format('%.0f', number)
  redis.call('HSET', tokens .. of, name, token)
  redis.call('ZADD', claims .. of, now + lease, name)
  granted[#granted + 1] = {name, token, taken_over, output}
end

local function take_over(key, most, output)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)) do
    grant(name, 1, output)
  end
end
take_over(claims, lapsed_max, '')
for i = 12, is_expected and #ARGV or 0, 2 do
  take_over(claims .. ':' .. ARGV[i], ARGV[i + 1], ARGV[i])
end

local function is_finished(name, minute)
  local count = redis.call('HGET', arrivals, name) or '0'
  local seen = redis.call('HGET', idle, name)
  local last_count, since, first
  if seen then
    last_count, since, first = string.match(seen, '^(%d+)|(%d+)|(%d+)$')
  end
  if last_count ~= count then
    since = now
    first = first or now
    redis.call('HSET', idle, name,
      string.format('%s|%.0f|%.0f', count, since, tonumber(first)))
  end
  local hold_from = math.max((minute + 1) * 60000, tonumber(first))
  return now - since >= grace or now - hold_from >= max_hold
end

local looked = redis.call('ZRANGE', minutes, 0, looked_max - 1, 'WITHSCORES')
local finished, filling = 0, 0
for i = 1, #looked, 2 do
  local name, minute = looked[i], tonumber(looked[i + 1])
  if redis.call('ZSCORE', claims, name) then
    -- Claimed already: its holder finds what was added, by event_types. (`idle` has it only when an error
    -- ended the script after the claim.)
    redis.call('HDEL', idle, name)
    redis.call('ZREM', minutes, name)
  elseif (minute + 1) * 60000 > now or finished >= finished_max then
    break
  elseif is_finished(name, minute) then
    grant(name, 0, '')
    redis.call('HDEL', idle, name)
    if filling == 0 then
      redis.call('ZPOPMIN', minutes)
    else
      redis.call('ZREM', minutes, name)
    end
    finished = finished + 1
  else
    filling = filling + 1
  end
end

return granted

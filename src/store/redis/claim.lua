#!lua flags=allow-oom
-- Claims minutes of one partition, by Redis' clock alone.
--
-- KEYS  minutes, claims, tokens, arrivals, idle, lagging, witness, stamps
-- ARGV  node, grace ms, max_hold ms, lease ms, most lapsed claims, most finished minutes, most minutes looked at,
--       what the node knows: epoch (0: nothing), its last stamp; what it expects the clock to show in ms (0: unknown),
--       and how far it may be from that; the most finished minutes that are old, and for how many ms after its end a minute
--       is not; then each output and the most lapsed claims to send to it
-- Gives a list of {minute's name, token, 1 if taken over from a lapsed claim, output or empty for a claim to seal}; or
--       nothing when Redis lacks what the node knows
--
-- A minute is in `claims` before it leaves `minutes`, so that an error between two commands loses none.
local minutes, claims, tokens, arrivals, idle, lagging, witness, stamps = unpack(KEYS)
local node = ARGV[1]
local grace, max_hold, lease = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lapsed_max, finished_max, looked_max = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local old_max, recent = tonumber(ARGV[12]), tonumber(ARGV[13])

local own = stamp_of(stamps, node) or 0
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
for i = 14, is_expected and #ARGV or 0, 2 do
  take_over(claims .. ':' .. ARGV[i], ARGV[i + 1], ARGV[i])
end

-- Claims what is finished of these minutes, until so many are in all; of the others it notes since when they are idle.
-- `is_lowest`: no minute that waits is lower than these.
local finished = 0
local function claim_finished(looked, most, is_lowest)
  if #looked == 0 or finished >= most then
    return
  end
  local names, noted = {}, {}
  for i = 1, #looked, 2 do
    names[#names + 1] = looked[i]
  end
  local counts = redis.call('HMGET', arrivals, unpack(names))
  local seen = redis.call('HMGET', idle, unpack(names))
  for i, name in ipairs(names) do
    local count = counts[i] or '0'
    local last_count, since, first
    if seen[i] then
      last_count, since, first = string.match(seen[i], '^(%d+)|(%d+)|(%d+)$')
    end
    local is_news = last_count ~= count
    if is_news then
      since, first = now, first or now
    end
    local hold_from = math.max((looked[2 * i] + 1) * 60000, tonumber(first))
    if redis.call('ZSCORE', claims, name) then
      -- Claimed already: its holder finds what was added, by event_types. (`idle` has it only when an error
      -- ended the script after the claim.)
      redis.call('HDEL', idle, name)
      redis.call('ZREM', minutes, name)
    elseif finished < most and (now - since >= grace or now - hold_from >= max_hold) then
      grant(name, 0, '')
      redis.call('HDEL', idle, name)
      if is_lowest then
        redis.call('ZPOPMIN', minutes)
      else
        redis.call('ZREM', minutes, name)
      end
      finished = finished + 1
    else
      is_lowest = false
      if is_news then
        noted[#noted + 1] = name
        noted[#noted + 1] = string.format('%s|%.0f|%.0f', count, since, tonumber(first))
      end
    end
  end
  if #noted > 0 then
    redis.call('HSET', idle, unpack(noted))
  end
end

-- Recent minutes come first, the newest before the others: they do not wait for old ones, however many there are.
local first_recent = math.floor((now - recent) / 60000)
local last_over = math.floor(now / 60000) - 1
claim_finished(
  redis.call('ZRANGE', minutes, last_over, first_recent, 'BYSCORE', 'REV', 'LIMIT', 0, looked_max, 'WITHSCORES'),
  finished_max, false)

-- Then the lowest. If more wait than are looked at, those may never be finished, or come again and again, so some of the others
-- have a quarter of the claims, each time others.
local old = redis.call('ZCOUNT', minutes, '-inf', '(' .. first_recent)
local most = math.min(finished_max, finished + old_max)
if old > looked_max then
  local from = looked_max * (1 + now_us % math.ceil(old / looked_max - 1))
  local others = redis.call('ZRANGE', minutes, from, math.min(from + looked_max, old) - 1, 'WITHSCORES')
  local share = math.floor((most - finished) / 4)
  claim_finished(redis.call('ZRANGE', minutes, 0, looked_max - 1, 'WITHSCORES'), most - share, true)
  claim_finished(others, most, false)
elseif old > 0 then
  claim_finished(redis.call('ZRANGE', minutes, 0, old - 1, 'WITHSCORES'), most, true)
end

return granted

#!lua flags=allow-oom
-- Claims minutes of one partition, using only Redis' clock. The node expects the clock to show `expected_ms` (0: unknown),
-- give or take `tolerance_ms`. A minute becomes old `recent_ms` after its end. The arguments end with each output and the
-- maximum number of lapsed claims to send to it. Returns a list of {minute's name, token, 1 if taken over from a lapsed
-- claim, output or empty for a claim to seal}, or nothing if Redis has lost something that the node knows.
--
-- A minute is added to `claims` before it is removed from `minutes`, so that an error in between does not lose it.
grace_ms, max_hold_ms, finished_max, looked_max =
  tonumber(grace_ms), tonumber(max_hold_ms), tonumber(finished_max), tonumber(looked_max)

if forgot(stamp_of(node) or 0) then
  return false
end
local now_us, now = clock()
local granted = {}

-- If the clock was set forward, minutes look finished and claims lapsed; if it was set back, leases would be too long.
local expected = tonumber(expected_ms)
local is_expected = expected == 0 or math.abs(now - expected) <= tonumber(tolerance_ms)
if not is_expected then
  lapsed_max, finished_max = 0, 0
end

-- While any node lags, an idle minute may still get its events, so only minutes held for `max_hold_ms` are closed.
local nodes_lagging = redis.call('HGETALL', lagging)
for i = 1, #nodes_lagging, 2 do
  if tonumber(nodes_lagging[i + 1]) > now then
    grace_ms = math.max(grace_ms, max_hold_ms)
  else
    redis.call('HDEL', lagging, nodes_lagging[i])
  end
end

-- The number in a token is Redis' clock in microseconds, or the last number plus one if that is greater. It therefore
-- increases even across a failover that lost the last token, and no token has to be kept once the minute is done.
local function grant(name, taken_over, output)
  local of = output == '' and '' or ':' .. output
  local last = redis.call('HGET', tokens .. of, name)
  local number = now_us
  if last then
    local _, before = token_parts(last)
    number = math.max(number, before + 1)
  end
  local token = token_of(node, number)
  redis.call('HSET', tokens .. of, name, token)
  redis.call('ZADD', claims .. of, now + lease_ms, name)
  granted[#granted + 1] = {name, token, taken_over, output}
end

local function take_over(key, most, output)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, most)) do
    grant(name, 1, output)
  end
end
take_over(claims, lapsed_max, '')
for i = REST, is_expected and #ARGV or 0, 2 do
  take_over(claims .. ':' .. ARGV[i], ARGV[i + 1], ARGV[i])
end

-- Claims finished minutes, up to `most` in total, and notes since when others are idle. If `is_lowest`, no minute is lower.
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
      -- The claim's holder finds the new events. (`idle` has the minute only if an error ended the script after the claim.)
      redis.call('HDEL', idle, name)
      redis.call('ZREM', minutes, name)
    elseif finished < most and (now - since >= grace_ms or now - hold_from >= max_hold_ms) then
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

-- Recent minutes come first, starting with the newest, so that they do not wait for old ones, however many there are.
local first_recent = math.floor((now - recent_ms) / 60000)
local last_over = math.floor(now / 60000) - 1
claim_finished(
  redis.call('ZRANGE', minutes, last_over, first_recent, 'BYSCORE', 'REV', 'LIMIT', 0, looked_max, 'WITHSCORES'),
  finished_max, false)

-- Then the lowest minutes, which may never finish. If there are too many, a quarter of the claims go to random others.
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

#!lua
-- Decides, once for all nodes, which of the given series are recorded under their own names in a minute. Returns the
-- arrivals of the minute, then the number of users of the overflow series and of each series: -1 if it is rejected, -2 if
-- only its log can tell. Returns nothing if the minute is divided into a different number of partitions.
--
-- `user_sets` is the key prefix of any sets of users. If no events follow, `counts` expires `kept_ms` after the minute.
--
-- A series is admitted if it has a field in `counts`, whose value is empty until the series is counted. The number of fields
-- never shrinks. The first rejection adds the overflow series, after which the minute stays full. Recording keeps `counts`
-- (PERSIST). This script fails while Redis is over its memory limit, because admission is the first step of recording.
--
-- The sets are read before the first write: if that fails (in a migrating slot), `counts` must not be left without a TTL.

-- A node that was suspended while the partition count changed must not start recording.
local fence = redis.call('GET', division)
if fence then
  local from, before, after = string.match(fence, '^(-?%d+)|(%d+)|(%d+)$')
  if divided ~= (tonumber(minute) < tonumber(from) and before or after) then
    return false
  end
end

-- Without sets, only a new series has a known number of users: none. An older series has at most one user per arrival.
local function users_of(series, is_known)
  if user_sets == '' then
    return is_known and -2 or 0
  end
  return redis.call('SCARD', user_sets .. series)
end

local arrived = tonumber(redis.call('HGET', arrivals, name) or '0')
local expires = redis.call('PTTL', counts)
local full = redis.call('HEXISTS', counts, overflow) == 1
local admitted, most = redis.call('HLEN', counts), tonumber(series_max)
local answers = {users_of(overflow, full)}
local new, is_new = {}, {}
local function add(series)
  new[#new + 1], new[#new + 2] = series, ''
  is_new[series] = true
end
in_slices(ARGV, function(...)
  for _, count in ipairs(redis.call('HMGET', counts, ...)) do
    local series = ARGV[#answers + REST - 1]
    local has = users_of(series, count)
    if not count and not is_new[series] then
      if not full and admitted < most then
        add(series)
        admitted = admitted + 1
      else
        if not full then
          add(overflow)
          full = true
        end
        has = -1
      end
    end
    answers[#answers + 1] = has
  end
end, REST)
-- Redis scans a small hash linearly. Beyond this number of series, a temporary long value makes Redis use a hash table.
local LISTED_MAX = 32
if #new > 0 and admitted > LISTED_MAX then
  redis.call('HSET', counts, new[1], string.rep(' ', 512), new[1], new[2])
end
in_slices(new, function(...)
  redis.call('HSET', counts, ...)
end)
if expires ~= -1 then
  local _, now = clock()
  local ahead = math.max(0, minute_end_ms - now)
  -- The expiry never becomes earlier, because another node may keep counts for longer.
  redis.call('PEXPIRE', counts, math.max(expires, kept_ms + ahead))
end
return {arrived, answers}

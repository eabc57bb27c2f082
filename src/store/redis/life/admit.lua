#!lua
-- Decides which of the series that follow are recorded under their own names in a minute, once and for all nodes.
-- Returns the arrivals of the minute, and the number of users of the overflow series and of each series, -1 when it is refused, -2
-- when only its log tells; or nothing when the minute is divided into another number of partitions.
--
-- `user_sets` is the beginning of the names of the sets of users; empty without such sets. `kept_ms` is for counts of series that
-- no node records.
--
-- A series is admitted when it has a field in `counts`, which is empty until it is counted; none leaves it before
-- the whole minute is forgotten, so their number never shrinks. The first that is refused enters the overflow
-- series, after which the minute stays full. Recording keeps `counts` (PERSIST); counts that no node records
-- expire. Refused while Redis is over its memory limit: admitting is the first step of recording.
--
-- The sets are read before the first write: an error there (a slot that moves) must not leave `counts`
-- without a time to live, which looks as if a node had recorded.

-- A node that slept through a change of the number of partitions must not begin to record.
local fence = redis.call('GET', division)
if fence then
  local from, before, after = string.match(fence, '^(-?%d+)|(%d+)|(%d+)$')
  if divided ~= (tonumber(minute) < tonumber(from) and before or after) then
    return false
  end
end

-- Without sets only a new series has a known number of users: none. An older one has at most one for each arrival.
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
-- Redis keeps a few hundred short fields as a list, and reads it from its start for each. Beyond this number of series a long value, which
-- is replaced at once, makes Redis keep a table.
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
  -- Never sooner: another node may keep counts for longer.
  redis.call('PEXPIRE', counts, math.max(expires, kept_ms + ahead))
end
return {arrived, answers}

#!lua
-- Decides which series of a minute have sets of their own, once and for all nodes.
--
-- KEYS  counts, division, arrivals
-- ARGV  most series, the overflow series, how long to keep in ms what nobody records, the minute's end in ms, what
--       the names of the sets of users begin with, if there are such, minute's name, epoch minute, the number of partitions into
--       which the node divides it, series…
-- Gives the arrivals of the minute, and how many users the overflow series has and each series, -1 when it is refused, -2 when
--       only its log tells; or nothing when the minute is divided into another number
--
-- A series is admitted when it has a field in `counts`, which is empty until it is counted; none leaves it before
-- the whole minute is forgotten, so their number never shrinks. The first that is refused enters the overflow
-- series: from then on the minute is full for good. Recording keeps `counts` (PERSIST); what nobody records ends by
-- itself. Not for when Redis is over its memory limit: admitting is the first step of recording.
--
-- The sets are looked at before anything is written: an error there (a slot that moves) must not leave `counts`
-- without a time to live, which looks as if somebody had recorded.
local counts = KEYS[1]
local most, overflow, users = tonumber(ARGV[1]), ARGV[2], ARGV[5]

-- A node that slept through a change of the number of partitions must not begin to record.
local division = redis.call('GET', KEYS[2])
if division then
  local from, before, after = string.match(division, '^(-?%d+)|(%d+)|(%d+)$')
  if ARGV[8] ~= (tonumber(ARGV[7]) < tonumber(from) and before or after) then
    return false
  end
end

-- Logs have no sets of users; a series that is new there has none. What was admitted before had one at most for each arrival.
local function users_of(series, is_known)
  if users == '' then
    return is_known and -2 or 0
  end
  return redis.call('SCARD', users .. series)
end

local arrived = tonumber(redis.call('HGET', KEYS[3], ARGV[6]) or '0')
local expires = redis.call('PTTL', counts)
local full = redis.call('HEXISTS', counts, overflow) == 1
local admitted = redis.call('HLEN', counts)
local answers = {users_of(overflow, full)}
local new, is_new = {}, {}
local function add(series)
  new[#new + 1], new[#new + 2] = series, ''
  is_new[series] = true
end
in_slices(ARGV, function(...)
  for _, count in ipairs(redis.call('HMGET', counts, ...)) do
    local series = ARGV[#answers + 8]
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
end, 9)
-- Redis keeps a few hundred short fields as a list, and reads it from its start for each. Beyond this many series a long value, which
-- is gone at once, makes it keep a table from then on.
local LISTED_MAX = 32
if #new > 0 and admitted > LISTED_MAX then
  redis.call('HSET', counts, new[1], string.rep(' ', 512), new[1], new[2])
end
in_slices(new, function(...)
  redis.call('HSET', counts, ...)
end)
if expires ~= -1 then
  local time = redis.call('TIME')
  local ahead = math.max(0, ARGV[4] - math.floor(time[1] * 1000 + time[2] / 1000))
  -- Never sooner: another node may keep counts for longer.
  redis.call('PEXPIRE', counts, math.max(expires, ARGV[3] + ahead))
end
return {arrived, answers}

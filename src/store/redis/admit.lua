#!lua
-- Decides which series of a minute have sets of their own, once and for all nodes.
--
-- KEYS  counts, division
-- ARGV  most series, the overflow series, how long to keep in ms what nobody records, the minute's end in ms, what
--       the names of the sets of users begin with, epoch minute, the number of partitions into which the node divides
--       it, series…
-- Gives how many users the overflow series has, and for each series how many it has, or -1 when it is refused; or nothing
--       when the minute is divided into another number
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
  if ARGV[7] ~= (tonumber(ARGV[6]) < tonumber(from) and before or after) then
    return false
  end
end

local answers = {redis.call('SCARD', users .. overflow)}
for i = 8, #ARGV do
  answers[i - 6] = redis.call('SCARD', users .. ARGV[i])
end

local expires = redis.call('PTTL', counts)
local full = redis.call('HEXISTS', counts, overflow) == 1
local admitted = redis.call('HLEN', counts)
for i = 8, #ARGV do
  if redis.call('HEXISTS', counts, ARGV[i]) == 0 then
    if not full and admitted < most then
      redis.call('HSET', counts, ARGV[i], '')
      admitted = admitted + 1
    else
      if not full then
        redis.call('HSET', counts, overflow, '')
        full = true
      end
      answers[i - 6] = -1
    end
  end
end
if expires ~= -1 then
  local time = redis.call('TIME')
  local ahead = math.max(0, ARGV[4] - math.floor(time[1] * 1000 + time[2] / 1000))
  -- Never sooner: another node may keep counts for longer.
  redis.call('PEXPIRE', counts, math.max(expires, ARGV[3] + ahead))
end
return answers

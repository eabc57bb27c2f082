#!lua
-- Decides which series of a minute have sets of their own, once and for all nodes.
--
-- KEYS  counts
-- ARGV  most series, the overflow series, how long to keep in ms what nobody records, the minute's end in ms, what
--       the names of the sets of users begin with, series…
-- Gives how many users the overflow series has, and for each series how many it has, or -1 when it is refused
--
-- A series is admitted when it has a field in `counts`, which is empty until it is counted; none leaves it before
-- the whole minute is forgotten, so their number never shrinks. The first that is refused enters the overflow
-- series: from then on the minute is full for good. Recording keeps `counts` (PERSIST); what nobody records ends by
-- itself. Not for when Redis is over its memory limit: admitting is the first step of recording.
local counts = KEYS[1]
local most, overflow, users = tonumber(ARGV[1]), ARGV[2], ARGV[5]
local expires = redis.call('PTTL', counts)
local full = redis.call('HEXISTS', counts, overflow) == 1
local admitted = redis.call('HLEN', counts)
local answers = {redis.call('SCARD', users .. overflow)}
for i = 6, #ARGV do
  local series = ARGV[i]
  local there = redis.call('HEXISTS', counts, series) == 1
  if not there and not full then
    if admitted < most then
      redis.call('HSET', counts, series, '')
      admitted = admitted + 1
      there = true
    else
      redis.call('HSET', counts, overflow, '')
      full = true
    end
  end
  answers[#answers + 1] = there and redis.call('SCARD', users .. series) or -1
end
if expires ~= -1 then
  local time = redis.call('TIME')
  local ahead = math.max(0, ARGV[4] - math.floor(time[1] * 1000 + time[2] / 1000))
  redis.call('PEXPIRE', counts, ARGV[3] + ahead)
end
return answers

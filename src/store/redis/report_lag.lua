#!lua flags=allow-oom
-- Notes until when a node lags: it has events of the partition that are not recorded.
--
-- KEYS  lagging
-- ARGV  node, for how long in ms, or nothing: it does not lag
if ARGV[2] == '' then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
return redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[2]))

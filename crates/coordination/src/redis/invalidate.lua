-- Removes a value or an error, takes the right to compute from whoever has it, and wakes all that wait.
--
-- KEYS  lock, entry
-- ARGV  channel
-- Gives 1, or 0 when there was nothing
--
-- A value that is computed while this is done is as old as what is removed, so its token must not be the last any more. Nor that of
-- one that was published: its answer may have been lost, and who asks again must not hear that it is there.
local lock, entry, channel = KEYS[1], KEYS[2], ARGV[1]
local kept = redis.call('HMGET', entry, 'expires', 'error_expires')
local there = tonumber(kept[1] or '0') > now or tonumber(kept[2] or '0') > now
redis.call('UNLINK', entry)
local last = redis.call('HGET', lock, 'token')
if last then
  there = there or not is_released(lock)
  redis.call('HSET', lock, 'token', whole(math.max(now, tonumber(last) + 1)), 'holder', '', 'until', '0')
end
if there then
  redis.call('PUBLISH', channel, '')
end
return there and 1 or 0

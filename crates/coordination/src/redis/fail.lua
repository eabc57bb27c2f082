-- Writes why there is no value, gives the right to compute back, and wakes all that wait.
--
-- KEYS  lock, entry
-- ARGV  token, channel, message, ttl us
-- Gives 1, or 0 when the right went to somebody else meanwhile
--
-- A value that is being refreshed stays as long as it would have stayed.
local lock, entry = KEYS[1], KEYS[2]
local token, channel, message, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
if redis.call('HGET', lock, 'token') ~= token then
  return 0
elseif is_released(lock) then
  -- The answer was lost and the computer asks again.
  return 1
end
redis.call('HSET', entry, 'error', message, 'error_expires', whole(now + ttl))
redis.call('PEXPIRE', entry, whole(math.max(redis.call('PTTL', entry), math.ceil(ttl / 1000))))
redis.call('HSET', lock, 'until', '0', 'holder', '')
redis.call('PUBLISH', channel, '')
return 1

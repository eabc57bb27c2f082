-- Writes a value with its cost and its expiry, gives the right to compute back, and wakes all that wait.
--
-- KEYS  lock, entry
-- ARGV  token, channel, value, cost us, ttl us
-- Gives 1, or 0 when the right went to somebody else meanwhile: a newer value is there, or will be
local lock, entry = KEYS[1], KEYS[2]
local token, channel, value, cost, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
if redis.call('HGET', lock, 'token') ~= token then
  return 0
elseif is_released(lock) then
  -- The answer was lost and the computer asks again.
  return 1
end
redis.call('HSET', entry, 'value', value, 'token', token, 'cost', cost,
  'written', whole(now), 'expires', whole(now + ttl))
redis.call('HDEL', entry, 'error', 'error_expires')
redis.call('PEXPIRE', entry, whole(math.ceil(ttl / 1000)))
redis.call('HSET', lock, 'until', '0', 'holder', '')
redis.call('PUBLISH', channel, '')
return 1

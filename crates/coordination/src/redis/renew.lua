-- Holds a lock for longer.
--
-- KEYS  lock
-- ARGV  token, ttl us from now
-- Gives 1 when the token is that of the lock and the lock is not free
local lock, token, ttl = KEYS[1], ARGV[1], tonumber(ARGV[2])
if redis.call('HGET', lock, 'token') ~= token or not is_held(lock) then
  return 0
end
redis.call('HSET', lock, 'until', whole(now + ttl))
redis.call('PEXPIRE', lock, whole(math.ceil(ttl / 1000) + KEPT_MS))
return 1

-- Releases a lock and wakes the next waiter.
--
-- KEYS  lock, queue, present
-- ARGV  token, channel
-- Gives 1 when the lock was held with this token until now
local lock, queue, present = KEYS[1], KEYS[2], KEYS[3]
if redis.call('HGET', lock, 'token') ~= ARGV[1] or not is_held(lock) then
  return 0
end
free(lock, queue, present, ARGV[2])
return 1

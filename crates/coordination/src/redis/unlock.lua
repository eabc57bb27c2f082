-- Releases a lock and wakes the next waiter.
--
-- KEYS  lock, queue, present
-- ARGV  token, channel
-- Gives 1 when the lock was held with this token until now, or until it was released by it before: the answer was lost
local lock, queue, present = KEYS[1], KEYS[2], KEYS[3]
if redis.call('HGET', lock, 'token') ~= ARGV[1] then
  return 0
elseif is_held(lock) then
  free(lock, queue, present, ARGV[2])
  return 1
end
return is_released(lock) and 1 or 0

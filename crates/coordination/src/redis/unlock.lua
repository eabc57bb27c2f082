-- Releases a lock and wakes the next waiter.
--
-- KEYS  lock, queue, present
-- ARGV  token, channel
-- Gives 1 when the lock was held with this token until now, or was the last to be released here, with this token
local lock, queue, present = KEYS[1], KEYS[2], KEYS[3]
local last = redis.call('HMGET', lock, 'token', 'released')
if last[2] == ARGV[1] then
  -- The answer was lost and the holder asks again. Somebody else may have the lock by now.
  return 1
elseif last[1] ~= ARGV[1] or not is_held(lock) then
  return 0
end
redis.call('HSET', lock, 'released', ARGV[1])
free(lock, queue, present, ARGV[2])
return 1

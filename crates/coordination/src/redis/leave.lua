-- Ends what a holder began: its place in the queue, or its lock.
--
-- KEYS  lock, queue, present
-- ARGV  holder, channel
-- Gives 1
local lock, queue, present = KEYS[1], KEYS[2], KEYS[3]
local holder, channel = ARGV[1], ARGV[2]
redis.call('ZREM', queue, holder)
redis.call('ZREM', present, holder)
if not is_held(lock) then
  wake(queue, present, channel)
elseif redis.call('HGET', lock, 'holder') == holder then
  free(lock, queue, present, channel)
end
return 1

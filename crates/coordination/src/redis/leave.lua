-- Ends what a holder began without an end: takes it out of the line, or the lock from it.
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

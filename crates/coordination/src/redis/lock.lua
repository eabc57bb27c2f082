-- Takes a lock, or a place in the queue for it.
--
-- KEYS  lock, queue, present
-- ARGV  holder, ttl us, how long a place is kept us (0: takes none), most that wait, channel
-- Gives {'granted', {token}}, {'busy', {us until it is worth to ask again}} or {'crowded', {}}
local lock, queue, present = KEYS[1], KEYS[2], KEYS[3]
local holder, ttl, presence, most, channel =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

local held = is_held(lock)
if held and redis.call('HGET', lock, 'holder') == holder then
  return {'granted', {grant(lock, holder, ttl)}}
end

local first = head(queue, present)
if not held and (not first or first == holder) then
  redis.call('ZREM', queue, holder)
  redis.call('ZREM', present, holder)
  return {'granted', {grant(lock, holder, ttl)}}
end

if presence > 0 then
  if not redis.call('ZSCORE', queue, holder) then
    if redis.call('ZCARD', queue) >= most then
      return {'crowded', {}}
    end
    redis.call('ZADD', queue, whole(now), holder)
  end
  redis.call('ZADD', present, whole(now + presence), holder)
  redis.call('PEXPIRE', queue, whole(math.ceil(presence / 1000) + KEPT_MS))
  redis.call('PEXPIRE', present, whole(math.ceil(presence / 1000) + KEPT_MS))
end
if held then
  return {'busy', {whole(tonumber(redis.call('HGET', lock, 'until')) - now)}}
end
-- Free, but another's turn: wake it again, in case it missed the wake-up.
redis.call('PUBLISH', channel .. ':' .. first, '')
return {'busy', {whole(tonumber(redis.call('ZSCORE', present, first)) - now)}}

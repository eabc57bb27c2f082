-- Who waits for a lock: `queue` has the order of arrival, `present` until when each counts as alive.

-- The first that is alive; the others leave. At most a hundred at once: the next call goes on.
local function head(queue, present)
  local gone = redis.call('ZRANGEBYSCORE', present, '-inf', whole(now), 'LIMIT', 0, 100)
  for _, waiter in ipairs(gone) do
    redis.call('ZREM', queue, waiter)
    redis.call('ZREM', present, waiter)
  end
  return redis.call('ZRANGE', queue, 0, 0)[1]
end

-- The lock is free: wakes the first in the queue, or else all that wait without a place.
local function wake(queue, present, channel)
  local first = head(queue, present)
  if first then
    redis.call('PUBLISH', channel .. ':' .. first, '')
  else
    redis.call('PUBLISH', channel, '')
  end
end

local function free(lock, queue, present, channel)
  redis.call('HSET', lock, 'until', '0', 'holder', '')
  wake(queue, present, channel)
end

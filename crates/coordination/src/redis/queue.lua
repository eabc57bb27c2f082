-- Who waits for a lock: `queue` has the order of arrival, `present` until when each counts as alive.

-- The first that is alive; the others leave. At most a hundred at once: the next call goes on. One that is not known to be
-- present, since Redis evicted that key and not the other, leaves too; it asks again, and is the last then.
local function head(queue, present)
  local gone = redis.call('ZRANGEBYSCORE', present, '-inf', whole(now), 'LIMIT', 0, 100)
  for _, waiter in ipairs(gone) do
    redis.call('ZREM', queue, waiter)
    redis.call('ZREM', present, waiter)
  end
  for _, waiter in ipairs(redis.call('ZRANGE', queue, 0, 99)) do
    if redis.call('ZSCORE', present, waiter) then
      return waiter
    end
    redis.call('ZREM', queue, waiter)
  end
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

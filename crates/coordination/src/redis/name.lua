-- The operations on a lock, the right to compute and a value. Each may be sent twice, since its answer may be lost.
--
-- KEYS  lock     HASH  token, holder, until (when it is free again; 0: it was released), released (the last token unlocked)
--       queue    ZSET  waiter -> when it came
--       present  ZSET  waiter -> until when it counts as alive
--       entry    HASH  value, token, cost, written, expires; error, error_expires
-- ARGV  operation, the channel that wakes all (with `:` and a waiter: that one), the operation's arguments
--
-- All instants and spans are in microseconds. Lua adds strings as the numbers that they hold, but does not compare them so.
local lock, queue, present, entry = unpack(KEYS)
local channel = ARGV[2]

-- The time for which a lock and its queue outlive their last use, so that tokens grow also when the clock is set back.
local KEPT_MS = 600000

-- The clock is that of the server. A Lua number holds it exactly until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function whole(number)
  return string.format('%.0f', number)
end

-- Returns the answer with the value; nil when there is none, or it has the token `outdated`.
local function found(outdated)
  local head = redis.call('HMGET', entry, 'token', 'cost', 'written', 'expires')
  if tonumber(head[4] or '0') <= now or head[1] == outdated then
    return nil
  end
  return {'value', redis.call('HGET', entry, 'value'), head[1], head[2], head[3], head[4], whole(now)}
end

if ARGV[1] == 'peek' then
  return found('') or {'none'}
end

local state = redis.call('HMGET', lock, 'token', 'holder', 'until', 'released')
local last, owner, free_at, unlocked = state[1], state[2], state[3], state[4]
local is_held = tonumber(free_at or '0') > now
-- Its last holder released it, so it did not lapse.
local is_released = free_at == '0'

-- A holder that asks again has the lock for longer, and the same token. A new one has the clock for its token, or one more
-- than the last where that is not enough.
local function grant(holder, ttl)
  local token = now
  if last and is_held and owner == holder then
    token = last
  elseif last then
    token = math.max(now, last + 1)
  end
  redis.call('HSET', lock, 'token', whole(token), 'holder', holder, 'until', whole(now + ttl))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl / 1000) + KEPT_MS))
  return {'granted', whole(token)}
end

local function quit(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', present, waiter)
end

-- Returns the first waiter that is alive. Waiters before it leave, a hundred at most; the next call continues. A waiter that is
-- not in `present`, since Redis evicted that key and not the other, leaves too; it asks again, and is the last then.
local function head()
  for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', present, '-inf', whole(now), 'LIMIT', 0, 100)) do
    quit(waiter)
  end
  for _, waiter in ipairs(redis.call('ZRANGE', queue, 0, 99)) do
    if redis.call('ZSCORE', present, waiter) then
      return waiter
    end
    redis.call('ZREM', queue, waiter)
  end
end

-- Wakes the first in the queue, or else all waiters without a place.
local function wake_next()
  local first = head()
  redis.call('PUBLISH', first and channel .. ':' .. first or channel, '')
end

local function release()
  redis.call('HSET', lock, 'until', '0', 'holder', '')
end

-- Gives the right to compute back and wakes all waiters.
local function finish()
  release()
  redis.call('PUBLISH', channel, '')
  return 1
end

local operations = {}

-- Takes the lock, or a place in the queue that is kept for `presence` (0: none).
function operations.lock(holder, ttl, presence, waiters_max)
  if is_held and owner == holder then
    return grant(holder, ttl)
  end
  local first = head()
  if not is_held and (not first or first == holder) then
    quit(holder)
    return grant(holder, ttl)
  end
  if tonumber(presence) > 0 then
    if not redis.call('ZSCORE', queue, holder) then
      if redis.call('ZCARD', queue) >= tonumber(waiters_max) then
        return {'crowded'}
      end
      redis.call('ZADD', queue, whole(now), holder)
    end
    redis.call('ZADD', present, whole(now + presence), holder)
    for _, key in ipairs({queue, present}) do
      redis.call('PEXPIRE', key, whole(math.ceil(presence / 1000) + KEPT_MS))
    end
  end
  if is_held then
    return {'busy', whole(free_at - now)}
  end
  -- Free, but another's turn: wake it again, in case it missed the wake-up.
  redis.call('PUBLISH', channel .. ':' .. first, '')
  return {'busy', whole(redis.call('ZSCORE', present, first) - now)}
end

-- Holds a lock or a right until `ttl` from now.
function operations.renew(token, ttl)
  if last ~= token or not is_held then
    return 0
  end
  redis.call('HSET', lock, 'until', whole(now + ttl))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl / 1000) + KEPT_MS))
  return 1
end

function operations.unlock(token)
  if unlocked == token then
    -- It was sent again. Another may have the lock by now.
    return 1
  elseif last ~= token or not is_held then
    return 0
  end
  redis.call('HSET', lock, 'released', token)
  release()
  wake_next()
  return 1
end

-- Ends a holder's place in the queue, its lock and its right.
function operations.leave(holder)
  quit(holder)
  if is_held and owner == holder then
    release()
    is_held = false
  end
  if not is_held then
    wake_next()
  end
  return 1
end

-- Reads a value without the token `outdated`, or takes the right to compute it.
function operations.begin(holder, ttl, outdated)
  local value = found(outdated)
  if value then
    return value
  end
  local failure = redis.call('HMGET', entry, 'error', 'error_expires')
  if tonumber(failure[2] or '0') > now then
    return {'failed', failure[1]}
  elseif is_held and owner ~= holder then
    return {'busy', whole(free_at - now)}
  end
  return grant(holder, ttl)
end

-- Writes a value. Returns 0 when another holder has got the right since: a newer value is there, or will be.
function operations.publish(token, value, cost, ttl)
  if last ~= token then
    return 0
  elseif is_released then
    return 1
  end
  redis.call('HSET', entry, 'value', value, 'token', token, 'cost', cost, 'written', whole(now), 'expires', whole(now + ttl))
  redis.call('HDEL', entry, 'error', 'error_expires')
  redis.call('PEXPIRE', entry, whole(math.ceil(ttl / 1000)))
  return finish()
end

-- Writes why there is no value. A value that was to be refreshed stays as long as it would have stayed.
function operations.fail(token, message, ttl)
  if last ~= token then
    return 0
  elseif is_released then
    return 1
  end
  redis.call('HSET', entry, 'error', message, 'error_expires', whole(now + ttl))
  redis.call('PEXPIRE', entry, whole(math.max(redis.call('PTTL', entry), math.ceil(ttl / 1000))))
  return finish()
end

-- Removes a value or an error, and takes the right from its holder. A running computation is as old as the removed value,
-- so its token must no longer be the last. Nor may that of a published value: its answer may have been lost, and a publisher
-- that asks again must not be told that the value is there.
function operations.invalidate()
  local kept = redis.call('HMGET', entry, 'expires', 'error_expires')
  local is_there = tonumber(kept[1] or '0') > now or tonumber(kept[2] or '0') > now or last and not is_released
  redis.call('UNLINK', entry)
  if last then
    redis.call('HSET', lock, 'token', whole(math.max(now, last + 1)))
    release()
  end
  if is_there then
    redis.call('PUBLISH', channel, '')
  end
  return is_there and 1 or 0
end

return operations[ARGV[1]](unpack(ARGV, 3))

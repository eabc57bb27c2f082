-- The operations on a lock, on the lease to compute a value, and on a value. Each may be sent again if its reply is lost.
--
-- KEYS  lock     HASH  token, holder, until (when the lease lapses; 0: it was released), released (the last holder that
--                      released its lease)
--       queue    ZSET  waiter -> arrival
--       present  ZSET  waiter -> time until which it keeps its place
--       entry    HASH  value, token, cost, written, expires; error, error_expires
-- ARGV  the operation, the channel that wakes all waiters (with `:` and a waiter appended, it wakes only that waiter), the
--       arguments of the operation
--
-- Times are in microseconds. Lua adds numeric strings as numbers, but compares them as strings. A reply that is a table
-- consists of its kind, a value or message, and a list of numbers.
local lock, queue, present, entry = unpack(KEYS)
local channel = ARGV[2]

-- How long a lock and its queue are kept after their last use, so that tokens keep increasing even if the clock is set back.
local KEPT_MS = 600000

-- The server's clock, which a Lua number represents exactly until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function whole(number)
  return string.format('%.0f', number)
end

-- Returns the reply with the value; nil if there is none, or if it has the token `outdated`.
local function found(outdated)
  local head = redis.call('HMGET', entry, 'token', 'cost', 'written', 'expires')
  if tonumber(head[4] or '0') <= now or head[1] == outdated then
    return nil
  end
  return {'value', redis.call('HGET', entry, 'value'), {head[1], head[2], head[3], head[4], whole(now)}}
end

if ARGV[1] == 'peek' then
  return found('') or false
end

local state = redis.call('HMGET', lock, 'token', 'holder', 'until', 'released')
local last, owner, free_at, released = state[1], state[2], state[3], state[4]
local is_held = tonumber(free_at or '0') > now

-- Extends the holder's lease, or grants one whose token is the current time or, if that is greater, the last token plus one.
local function grant(holder, ttl)
  local token = now
  if last and is_held and owner == holder then
    token = last
  elseif last then
    token = math.max(now, last + 1)
  end
  redis.call('HSET', lock, 'token', whole(token), 'holder', holder, 'until', whole(now + ttl))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl / 1000) + KEPT_MS))
  return {'granted', '', {whole(token)}}
end

local function quit(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('ZREM', present, waiter)
end

-- Returns the first waiter that still has its place, and the time until which it has it. Removes up to a hundred waiters
-- before it whose time is up, or that are not in `present` because Redis evicted that key.
local function head()
  for _ = 1, 100 do
    local waiter = redis.call('ZRANGE', queue, 0, 0)[1]
    local place_until = waiter and tonumber(redis.call('ZSCORE', present, waiter) or '0')
    if not waiter or place_until > now then
      return waiter, place_until
    end
    quit(waiter)
  end
end

-- Gives a waiter a place at the end of the queue, unless it still has one. Returns whether there was room.
local function enter(waiter, presence, waiters_max)
  local place_until = tonumber(redis.call('ZSCORE', present, waiter) or '0')
  -- If Redis evicted the queue, the waiter is not in it.
  local mode = place_until > now and 'NX' or 'CH'
  if redis.call('ZADD', queue, mode, whole(now), waiter) == 1 and redis.call('ZCARD', queue) > tonumber(waiters_max) then
    for _, gone in ipairs(redis.call('ZRANGEBYSCORE', present, '-inf', whole(now), 'LIMIT', 0, 100)) do
      if gone ~= waiter then
        quit(gone)
      end
    end
    if redis.call('ZCARD', queue) > tonumber(waiters_max) then
      quit(waiter)
      return false
    end
  end
  redis.call('ZADD', present, whole(now + presence), waiter)
  for _, key in ipairs({queue, present}) do
    redis.call('PEXPIRE', key, whole(math.ceil(presence / 1000) + KEPT_MS))
  end
  return true
end

-- Wakes the first waiter in the queue. If the queue is empty, wakes all waiters that have no place in it.
local function wake_next()
  local first = head()
  redis.call('PUBLISH', first and channel .. ':' .. first or channel, '')
end

local function release()
  redis.call('HSET', lock, 'until', '0', 'holder', '', 'released', owner)
end

local operations = {}

-- Acquires the lock or, if it is busy, a place in the queue, which is kept for `presence` (0: no place).
function operations.lock(holder, ttl, presence, waiters_max)
  if is_held and owner == holder then
    return grant(holder, ttl)
  end
  local first, first_until
  if not is_held then
    first, first_until = head()
    if first == holder then
      quit(holder)
    end
    if not first or first == holder then
      return grant(holder, ttl)
    end
  end
  if tonumber(presence) > 0 and not enter(holder, presence, waiters_max) then
    return {'crowded', '', {}}
  end
  if is_held then
    return {'busy', '', {whole(free_at - now)}}
  end
  -- It is the turn of another waiter, which may have missed its wake-up.
  redis.call('PUBLISH', channel .. ':' .. first, '')
  return {'busy', '', {whole(first_until - now)}}
end

function operations.renew(holder, ttl)
  if not is_held or owner ~= holder then
    return 0
  end
  redis.call('HSET', lock, 'until', whole(now + ttl))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl / 1000) + KEPT_MS))
  return 1
end

-- Releases a holder's lease and its place in the queue. Returns 1 if the holder had the lease, also in repeated calls.
function operations.release(holder)
  -- A lease that `begin` granted does not end the holder's place.
  quit(holder)
  if is_held and owner == holder then
    release()
    is_held, released = false, holder
  end
  if not is_held then
    wake_next()
  end
  return released == holder and 1 or 0
end

-- Reads a value or, if there is none or it has the token `outdated`, acquires the lease to compute it.
function operations.begin(holder, ttl, outdated)
  local value = found(outdated)
  if value then
    return value
  end
  local failure = redis.call('HMGET', entry, 'error', 'error_expires')
  if tonumber(failure[2] or '0') > now then
    return {'failed', failure[1], {}}
  elseif is_held and owner ~= holder then
    return {'busy', '', {whole(free_at - now)}}
  end
  return grant(holder, ttl)
end

-- Writes a value that took `cost` to compute or, without `cost`, an error message, which does not replace a value. Then ends
-- the lease and wakes all waiters. Returns 0 without effect if another lease was granted.
function operations.publish(holder, ttl, output, cost)
  if owner ~= holder then
    return released == holder and 1 or 0
  end
  local expires, ttl_ms = whole(now + ttl), math.ceil(ttl / 1000)
  if cost then
    redis.call('HSET', entry, 'value', output, 'token', last, 'cost', cost, 'written', whole(now), 'expires', expires)
    redis.call('HDEL', entry, 'error', 'error_expires')
  else
    redis.call('HSET', entry, 'error', output, 'error_expires', expires)
    ttl_ms = math.max(redis.call('PTTL', entry), ttl_ms)
  end
  redis.call('PEXPIRE', entry, whole(ttl_ms))
  release()
  redis.call('PUBLISH', channel, '')
  return 1
end

-- Removes a value or an error and ends the lease. A running computation may have used the same data as the removed value, so
-- its result must not be published. If the holder that published the removed value did not get the reply and asks again, it
-- must not be told that the value exists. Therefore both `holder` and `released` are cleared.
function operations.invalidate()
  local kept = redis.call('HMGET', entry, 'expires', 'error_expires')
  local is_there = tonumber(kept[1] or '0') > now or tonumber(kept[2] or '0') > now or last and free_at ~= '0'
  redis.call('UNLINK', entry)
  if last then
    redis.call('HSET', lock, 'token', whole(math.max(now, last + 1)), 'until', '0', 'holder', '', 'released', '')
  end
  if is_there then
    redis.call('PUBLISH', channel, '')
  end
  return is_there and 1 or 0
end

return operations[ARGV[1]](unpack(ARGV, 3))

-- The operations on a value and on the lease to compute it. Each may be sent again if its reply is lost.
--
-- KEYS  lock   HASH  token, holder, until (when the lease lapses; 0: it was released), released (the last holder that
--                    released its lease)
--       entry  HASH  value, token, cost, written, expires; error, error_expires
-- ARGV  the operation, the channel that wakes all waiters, the arguments of the operation
--
-- Times are in microseconds. Lua adds numeric strings as numbers, but compares them as strings. A reply that is a table
-- consists of its kind, a value or message, and a list of numbers.
local lock, entry = unpack(KEYS)
local channel = ARGV[2]

-- How long a lock is kept after its last use, so that tokens keep increasing even if the clock is set back.
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

local function release()
  redis.call('HSET', lock, 'until', '0', 'holder', '', 'released', owner)
end

local operations = {}

function operations.renew(holder, ttl)
  if not is_held or owner ~= holder then
    return 0
  end
  redis.call('HSET', lock, 'until', whole(now + ttl))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl / 1000) + KEPT_MS))
  return 1
end

-- Releases a holder's lease and wakes all waiters. Returns 1 if no other lease was granted before, also in repeated calls.
function operations.release(holder)
  if owner == holder then
    release()
    redis.call('PUBLISH', channel, '')
    return 1
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

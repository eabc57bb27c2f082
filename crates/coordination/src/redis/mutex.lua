-- The operations on a lock. Each may be sent again if its reply is lost; after `lock` with `join`, `keep` removes duplicates.
--
-- KEYS  holders  LIST  the state of the lock, followed by the holders that wait, in order of arrival. The state is `TOKEN
--                      LAPSES KEPT HOLDER RELEASED`: the last token, when its lease lapses, when the list expires, its
--                      holder (empty if it released the lease), and the last holder that released its lease.
-- ARGV  the operation, the channel to which `:` and a waiter are appended to wake this waiter, the arguments of the operation
--
-- Times are in microseconds. A contended lock is mostly joined behind others and handed over, so these take few commands.
local holders = KEYS[1]
local channel = ARGV[2]

-- How long a list is kept after its last use, at least, so that tokens keep increasing even if the clock is set back.
local KEPT = 600000000

local last, lapses, kept, owner, released = 0, 0, 0, '', ''
local now

-- Reads the state from the first element, and the server's clock, which a Lua number represents exactly until the year 2255.
-- Returns false if there is no state: there is no list, or only waiters, because the script failed after the first had joined.
local function read(first)
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
  local fields = {string.match(first or '', '^(%d+) (%d+) (%d+) (%S*) (%S*)$')}
  if #fields == 0 then
    return false
  end
  last, lapses, kept = tonumber(fields[1]), tonumber(fields[2]), tonumber(fields[3])
  owner, released = fields[4], fields[5]
  return true
end

-- Replaces the state or, if there is none, adds it, after `pushed` waiters have been pushed. Keeps the list for a while.
local function write(pushed)
  local used = math.max(lapses, now)
  local is_extended = used + KEPT > kept
  if is_extended then
    kept = used + 2 * KEPT
  end
  local length
  local state = string.format('%.0f %.0f %.0f %s %s', last, lapses, kept, owner, released)
  if pushed then
    length = redis.call('LPUSH', holders, state)
  else
    redis.call('LSET', holders, 0, state)
  end
  -- If all elements had been popped, this list is a new one, which does not expire yet.
  if is_extended or pushed and length == pushed + 1 then
    redis.call('PEXPIRE', holders, string.format('%.0f', math.ceil((kept - now) / 1000)))
  end
end

local function grant(holder, ttl)
  last, lapses, owner = math.max(now, last + 1), now + ttl, holder
end

local function token()
  return string.format('%.0f', last)
end

local function wake(waiter)
  redis.call('PUBLISH', channel .. ':' .. waiter, token())
end

-- Adds a waiter. Returns the length of the list; nil if too many wait.
local function join(waiter, waiters_max)
  local length = redis.call('RPUSH', holders, waiter)
  if length > waiters_max + 1 then
    redis.call('LTRIM', holders, 0, waiters_max)
    return nil
  end
  return length
end

local function process(holder)
  return string.match(holder, '^[^-]*')
end

-- Removes the waiters of a process that let its lease lapse, because it is dead or cut off. If it lives, they join again.
local function remove_waiters_of(lost)
  for _, waiter in ipairs(redis.call('LRANGE', holders, 1, -1)) do
    if process(waiter) == lost then
      redis.call('LREM', holders, 0, waiter)
    end
  end
end

local operations = {}

-- Acquires the lock or, if it is busy, a place among the waiters, unless `place` is `none`.
function operations.lock(holder, ttl, place, waiters_max, handed)
  ttl, waiters_max = tonumber(ttl), tonumber(waiters_max)
  local places = 0
  if place == 'join' then
    local length = join(holder, waiters_max)
    if length and length > 2 then
      return {'queued', '', {}}
    end
    places = length and 1 or 0
  elseif place == 'keep' then
    places = #redis.call('LPOS', holders, holder, 'COUNT', 0)
    if places > 1 then
      redis.call('LREM', holders, 1 - places, holder)
    end
  end

  local has_state = read(redis.call('LINDEX', holders, 0))
  local pushed = not has_state and 0
  if lapses > now and owner == holder then
    if places > 0 then
      redis.call('LREM', holders, 0, holder)
    end
    lapses = now + ttl
    write(pushed)
    return {'granted', '', {token()}}
  end
  if lapses <= now then
    if owner ~= '' and process(owner) ~= process(holder) then
      remove_waiters_of(process(owner))
    end
    local first = redis.call('LINDEX', holders, has_state and 1 or 0)
    if first then
      redis.call('LREM', holders, 1, first)
    end
    if not first or first == holder then
      grant(holder, ttl)
      write(pushed)
      return {'granted', '', {token()}}
    end
    grant(first, handed)
    write(pushed)
    wake(first)
  end
  -- If too many wait, the dead ones may have been removed above.
  if place ~= 'none' and places == 0 and not join(holder, waiters_max) then
    return {'crowded', '', {}}
  end
  return {'busy', '', {string.format('%.0f', lapses - now), token()}}
end

function operations.renew(holder, ttl)
  read(redis.call('LINDEX', holders, 0))
  if owner ~= holder or lapses <= now then
    return 0
  end
  lapses = now + ttl
  write()
  return 1
end

-- Releases a holder's lease, and hands the lock over to the first waiter, which renews its lease when it learns of it. Gives
-- up the place of a holder without lease. Returns 1 if no other lease was granted before, also if repeated.
function operations.release(holder, handed)
  local state, first = unpack(redis.call('LPOP', holders, 2) or {})
  local has_state = read(state)
  if owner == holder then
    if first == holder then
      -- It joined twice.
      first = redis.call('LPOP', holders)
    end
    released, owner, lapses = holder, '', 0
    if first then
      grant(first, handed)
      wake(first)
    end
    write(0)
    return 1
  end
  if first then
    redis.call('LPUSH', holders, first)
  end
  if has_state then
    write(first and 1 or 0)
  elseif state then
    redis.call('LPUSH', holders, state)
  end
  redis.call('LREM', holders, 0, holder)
  return released == holder and 1 or 0
end

return operations[ARGV[1]](unpack(ARGV, 3))

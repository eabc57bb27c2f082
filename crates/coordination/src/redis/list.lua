-- The operations that replace a list and its time to live in one step.
--
-- KEYS  list       LIST    the items that are read
--       writer     STRING  the greatest token that replaced them
--       staged     LIST    the items of one writer, before they are read
--       committed  STRING  there for a while when they are in the place of the list
-- ARGV  operation, its arguments; all times in milliseconds
--
-- Returns 1; 0 when a newer writer was there; -1 when the staged items are not complete.
local list, writer, staged, committed = unpack(KEYS)
local operation = ARGV[1]

-- Returns whether a writer is the newest, or has no token, and keeps its token for `kept_ms`.
local function is_newest(token, kept_ms)
  if token == '' then
    return true
  end
  local last = redis.call('GET', writer)
  if last and tonumber(last) > tonumber(token) then
    return false
  end
  redis.call('SET', writer, token, 'PX', kept_ms)
  return true
end

-- Adds the arguments from `first` on, by the thousand, since Lua unpacks no more than some 8000.
local function push(key, first)
  for from = first, #ARGV, 1000 do
    redis.call('RPUSH', key, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
end

if operation == 'replace' then
  local token, kept_ms, ttl_ms = ARGV[2], ARGV[3], ARGV[4]
  if not is_newest(token, kept_ms) then
    return 0
  end
  redis.call('UNLINK', list)
  push(list, 5)
  redis.call('PEXPIRE', list, ttl_ms)
elseif operation == 'stage' then
  local before, kept_ms = tonumber(ARGV[2]), ARGV[3]
  local length = redis.call('LLEN', staged)
  -- A piece that is sent twice is added once.
  if length == before then
    push(staged, 4)
    redis.call('PEXPIRE', staged, kept_ms)
  elseif length ~= before + #ARGV - 3 then
    return -1
  end
elseif operation == 'commit' then
  local token, kept_ms, ttl_ms, items, known_ms = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
  if redis.call('EXISTS', committed) == 1 then
    -- The answer was lost and the writer asks again.
    return 1
  elseif redis.call('LLEN', staged) ~= items then
    return -1
  elseif not is_newest(token, kept_ms) then
    redis.call('UNLINK', staged)
    return 0
  end
  redis.call('SET', committed, '', 'PX', known_ms)
  redis.call('PEXPIRE', staged, ttl_ms)
  -- RENAME would free the old list before it answers.
  redis.call('UNLINK', list)
  redis.call('RENAME', staged, list)
end
return 1

-- Replaces a list and its time to live atomically. A large list is sent in pieces, which become visible together.
--
-- KEYS  list       LIST    the items that readers get
--       writer     STRING  the greatest token with which the list was replaced
--       staged     LIST    the items from this writer that are not visible yet
--       committed  STRING  set for a while after the staged items became the list
-- ARGV  the operation (`stage` adds a piece; `replace` adds the last piece and makes all pieces visible), the number of
--       items before this piece, the arguments of the operation, the items of this piece. Times are in milliseconds.
--
-- Returns 1, or 0 if a newer writer has replaced the list, or -1 if the staged items are incomplete.
local list, writer, staged, committed = unpack(KEYS)
local operation = ARGV[1]

-- Appends all arguments from number `first` to a list, a thousand at a time, because Lua can unpack only about 8000 at once.
local function push(key, first)
  for from = first, #ARGV, 1000 do
    redis.call('RPUSH', key, unpack(ARGV, from, math.min(from + 999, #ARGV)))
  end
end

local before = tonumber(ARGV[2])
local length = redis.call('LLEN', staged)

if operation == 'stage' then
  local kept_ms = ARGV[3]
  -- A piece that is sent twice, because the reply was lost, is added only once.
  if length == before then
    push(staged, 4)
    redis.call('PEXPIRE', staged, kept_ms)
  elseif length ~= before + #ARGV - 3 then
    return -1
  end
  return 1
end

local token, kept_ms, ttl_ms, known_ms = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if redis.call('EXISTS', committed) == 1 then
  return 1
elseif length ~= before then
  return -1
elseif token ~= '' then
  local last = redis.call('GET', writer)
  if last and tonumber(last) > tonumber(token) then
    redis.call('UNLINK', staged)
    return 0
  end
  redis.call('SET', writer, token, 'PX', kept_ms)
end
push(staged, 7)
-- Without this, RENAME would free the old list synchronously.
redis.call('UNLINK', list)
if #ARGV > 6 then
  redis.call('PEXPIRE', staged, ttl_ms)
  redis.call('RENAME', staged, list)
end
if before > 0 then
  redis.call('SET', committed, '', 'PX', known_ms)
end
return 1

-- Functions shared by the scripts for a partition. They use the scripts' key and argument names.

-- Returns Redis' clock in microseconds and in milliseconds.
local function clock()
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  return us, math.floor(us / 1000)
end

-- Formats a whole number as text, since Redis shows large ones with an exponent.
local function whole(number)
  return string.format('%.0f', number)
end

-- Calls a function with the items of a list from `first` on, in slices because unpack has a limit.
local function in_slices(list, call, first)
  for from = first or 1, #list, 1000 do
    call(unpack(list, from, math.min(from + 999, #list)))
  end
end

-- Returns a token, which consists of the node's name and an increasing number.
local function token_of(node, number)
  return string.format('%s|%.0f', node, number)
end

local function token_parts(token)
  local node, number = string.match(token, '^(.*)|(%d+)$')
  return node, tonumber(number)
end

-- Returns whether any output is missing counts for a minute, ignoring the output whose claims are in `but`.
local function is_awaited(name, but)
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    local key = claims .. ':' .. output
    if key ~= but and redis.call('ZSCORE', key, name) then
      return true
    end
  end
  return false
end

-- Parses a node's `stamps` entry: its last check-in, the last closing it knows, until when it is alive (ms), late events.
local function stamp_parts(entry)
  local stamp, heard, alive_until, late = string.match(entry or '', '^(%d+)|(%d+)|(%d+)|(%d+)$')
  return tonumber(stamp), tonumber(heard or '0'), tonumber(alive_until or '0'), tonumber(late or '0')
end

local function stamp_of(node)
  return stamp_parts(redis.call('HGET', stamps, node))
end

local function put_stamp(node, ...)
  redis.call('HSET', stamps, node, string.format('%.0f|%.0f|%.0f|%.0f', ...))
end

-- Returns whether Redis has lost something that the node knows. `own` is the node's stamp in Redis.
local function forgot(own)
  return known_epoch ~= '0'
    and (redis.call('HGET', witness, 'epoch') ~= known_epoch or own < tonumber(known_stamp))
end

-- Returns the last closing that every other live node knows.
local function heard_by_others(now)
  local heard_by_all = math.huge
  local all = redis.call('HGETALL', stamps)
  for i = 1, #all, 2 do
    local _, heard, alive_until = stamp_parts(all[i + 1])
    if all[i] ~= node and alive_until > now then
      heard_by_all = math.min(heard_by_all, heard)
    end
  end
  return heard_by_all
end

-- Both `announce` and `close` close a minute, after which no new counts are sealed for it. The number of a closing is even
-- while counts of the minute are only about to be written, and odd once an output has all of them: 4n + 1, or 4n + 3 if the
-- minute had no events.
local function announce(minute)
  local number = tonumber(redis.call('ZSCORE', closed, minute))
  if not number then
    number = 2 * redis.call('HINCRBY', witness, 'sequence', 1)
    redis.call('ZADD', closed, whole(number), minute)
  end
  return number
end

local function close(minute, is_empty)
  local since = tonumber(redis.call('HGET', witness, 'since'))
  local number = tonumber(redis.call('ZSCORE', closed, minute) or '0')
  if not (since and tonumber(minute) < since) and number % 2 == 0 then
    local sequence = redis.call('HINCRBY', witness, 'sequence', 1)
    if (sequence % 2 == 1) ~= (is_empty == true) then
      sequence = redis.call('HINCRBY', witness, 'sequence', 1)
    end
    redis.call('ZADD', closed, whole(2 * sequence + 1), minute)
  end
end

-- Lets the counts of a minute expire. They are now only for queries; the more there are, the sooner they expire.
local function let_expire(counts)
  local share = math.floor(60000 * kept_counts / math.max(1, redis.call('HLEN', counts)))
  redis.call('PEXPIRE', counts, math.min(kept_ms, math.max(share, 60000)))
end

-- What the scripts share; put behind their first line.

-- Calls a function with a list from there on, in slices: unpack has a limit. A command for many costs much less than many commands.
local function in_slices(list, call, from)
  for first = from or 1, #list, 1000 do
    call(unpack(list, first, math.min(first + 999, #list)))
  end
end

-- Whether an output lacks counts of a minute. The one whose claims are `but` is not asked.
local function is_awaited(outputs, claims, name, but)
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    local key = claims .. ':' .. output
    if key ~= but and redis.call('ZSCORE', key, name) then
      return true
    end
  end
  return false
end

-- The parts of an entry of `stamps`, all that is kept of a node: the number of its last check-in, the last closing that it has
-- heard of, until when it counts as alive in ms, and the events that it found late.
local function stamp_parts(entry)
  local stamp, heard, alive_until, late = string.match(entry or '', '^(%d+)|(%d+)|(%d+)|(%d+)$')
  return tonumber(stamp), tonumber(heard or '0'), tonumber(alive_until or '0'), tonumber(late or '0')
end

local function stamp_of(stamps, node)
  return stamp_parts(redis.call('HGET', stamps, node))
end

local function put_stamp(stamps, node, ...)
  redis.call('HSET', stamps, node, string.format('%.0f|%.0f|%.0f|%.0f', ...))
end

-- Adds to the events that the holder of a claim found late, and gives how many that are in all. It hears the same number again
-- with its next answer, so that a lost answer takes none with it.
local function late_in_all(stamps, token, late)
  local node = string.match(token, '^(.*)|%d+$')
  local stamp, heard, alive_until, before = stamp_of(stamps, node)
  if late > 0 then
    put_stamp(stamps, node, stamp or 0, heard, alive_until, before + late)
  end
  return before + late
end

-- Both close a minute: from now on it seals nothing new. The number of a closing is even as long as counts of the minute are only
-- about to be written, and odd when an output has all of them.
local function announce(closed, witness, minute)
  local number = tonumber(redis.call('ZSCORE', closed, minute))
  if not number then
    number = 2 * redis.call('HINCRBY', witness, 'sequence', 1)
    redis.call('ZADD', closed, string.format('%.0f', number), minute)
  end
  return number
end

local function close(closed, witness, minute)
  local since = tonumber(redis.call('HGET', witness, 'since'))
  local number = tonumber(redis.call('ZSCORE', closed, minute) or '0')
  if not (since and tonumber(minute) < since) and number % 2 == 0 then
    number = 2 * redis.call('HINCRBY', witness, 'sequence', 1) + 1
    redis.call('ZADD', closed, string.format('%.0f', number), minute)
  end
end

-- Counts that no output lacks are for questions only. The more there are the sooner they go.
local function let_expire(counts, kept_ms, kept_counts)
  local share = math.floor(60000 * kept_counts / math.max(1, redis.call('HLEN', counts)))
  redis.call('PEXPIRE', counts, math.min(kept_ms, math.max(share, 60000)))
end

-- Fixes the counts of these series, each `<users>:<events>`, for these outputs, once. Gives how many, and how many events the holder
-- of the claim found late in all, those of the other series included. A minute that was closed seals nothing new: what its counts were may be forgotten, and is
-- published. `unsent` is written before `counts`: whoever stops in between (a slot that moves) leaves a state that the next
-- call fixes.
local function seal(keys, args, ours, series, values)
  local _, _, _, counts, witness, closed, _, outputs, stamps = unpack(keys)
  local base, minute = args[5], args[6]
  local since = tonumber(redis.call('HGET', witness, 'since'))
  local is_closed = redis.call('ZSCORE', closed, minute) or (since and tonumber(minute) < since)
  local new, fields, place, late = {}, {}, 0, 0
  in_slices(series, function(...)
    for _, known in ipairs(redis.call('HMGET', counts, ...)) do
      place = place + 1
      -- Empty: admitted, and not sealed before.
      if is_closed or (known and known ~= '') then
        late = late + string.match(values[place], '%d+$')
      else
        new[#new + 1] = series[place]
        fields[#fields + 1], fields[#fields + 2] = series[place], values[place]
      end
    end
  end)
  late = late_in_all(stamps, args[2], late)
  for _, output in ipairs(#new > 0 and ours or {}) do
    redis.call('SADD', outputs, output)
    in_slices(new, function(...)
      redis.call('SADD', base .. 'unsent:' .. output, ...)
    end)
  end
  in_slices(fields, function(...)
    redis.call('HSET', counts, ...)
  end)
  return #new, late
end

-- Ends a step of sealing. Where nothing is left to seal the claim ends, and its holder gets one for each output that lacks
-- counts, to send them; these are there before the claim to seal goes.
local function end_step(keys, args, ours, sealed, late, left)
  local claims, tokens, _, counts, witness, closed, arrivals, outputs = unpack(keys)
  local name, token, lease, base, minute = args[1], args[2], args[4], args[5], args[6]
  if sealed > 0 then
    -- A minute that came back may have counts that were about to be forgotten.
    redis.call('PERSIST', counts)
  end
  local time = redis.call('TIME')
  local deadline = math.floor(time[1] * 1000 + time[2] / 1000) + lease
  if left > 0 then
    redis.call('ZADD', claims, 'XX', deadline, name)
    return {sealed, late, left, '', {}}
  end

  local node, number = string.match(token, '^(.*)|(%d+)$')
  token = string.format('%s|%.0f', node, math.max(time[1] * 1000000 + time[2], number + 1))
  local function lacks(output)
    return redis.call('SCARD', base .. 'unsent:' .. output) > 0 and not redis.call('ZSCORE', claims .. ':' .. output, name)
  end
  local granted = {}
  for _, output in ipairs(ours) do
    if lacks(output) then
      redis.call('HSET', tokens .. ':' .. output, name, token)
      redis.call('ZADD', claims .. ':' .. output, deadline, name)
      granted[#granted + 1] = output
    end
  end
  -- An earlier step may have been that of a node with other outputs. Whoever has them takes these claims over.
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    if lacks(output) then
      redis.call('ZADD', claims .. ':' .. output, 0, name)
    end
  end
  if not is_awaited(outputs, claims, name) then
    close(closed, witness, minute)
    let_expire(counts, args[7], args[8])
  end
  redis.call('HDEL', arrivals, name)
  redis.call('ZREM', claims, name)
  redis.call('HDEL', tokens, name)
  return {sealed, late, 0, token, granted}
end

-- Functions shared by the scripts that seal counts.

-- The outputs that the counts are sealed for, and whether the users are kept, because one of these is the rollups.
local ours, keeps_users = {}, false
for output in string.gmatch(sealed_for, '%S+') do
  ours[#ours + 1] = output
  keeps_users = keeps_users or output == 'rollup'
end

local function is_closed()
  local since = tonumber(redis.call('HGET', witness, 'since'))
  return redis.call('ZSCORE', closed, minute) or (since and tonumber(minute) < since)
end

-- Adds to the number of events that the claim's holder found late. Returns the total, so that a lost reply does no harm.
local function late_in_all(late)
  local node = token_parts(token)
  local stamp, heard, alive_until, before = stamp_of(node)
  if late > 0 then
    put_stamp(node, stamp or 0, heard, alive_until, before + late)
  end
  return before + late
end

-- Seals the counts of these series, each `<users>:<events>`, for the outputs in `ours`. Counts that are sealed already stay
-- unchanged. Returns the number of series sealed, and the total number of events that the claim's holder found late. No new
-- counts are sealed for a closed minute: its counts may have been lost here, but they have been published. `unsent` is
-- written before `counts`, so if the script stops in between (a migrating slot), the next call repairs the state.
local function seal(series, values)
  local is_late = is_closed()
  local new, fields, place, late = {}, {}, 0, 0
  in_slices(series, function(...)
    for _, known in ipairs(redis.call('HMGET', counts, ...)) do
      place = place + 1
      -- The value is empty if the series has been admitted but not sealed yet.
      if is_late or (known and known ~= '') then
        late = late + string.match(values[place], '%d+$')
      else
        new[#new + 1] = series[place]
        fields[#fields + 1], fields[#fields + 2] = series[place], values[place]
      end
    end
  end)
  late = late_in_all(late)
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

-- Ends a step of sealing. After the last series, the claim ends, and its holder gets a claim to send for each output that is
-- missing counts. These claims are created before the claim to seal is removed. Returns {series sealed, total number of
-- events that the caller found late, series left, token of the claims to send, their outputs}.
local function end_step(sealed, late, left)
  if sealed > 0 then
    -- If the minute was sealed before and has received events since, its counts may be about to expire.
    redis.call('PERSIST', counts)
  end
  local now_us, now = clock()
  local deadline = now + lease_ms
  if left > 0 then
    redis.call('ZADD', claims, 'XX', deadline, name)
    return {sealed, late, left, '', {}}
  end

  local node, number = token_parts(token)
  local token = token_of(node, math.max(now_us, number + 1))
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
  -- An earlier step may have been done by a node with different outputs. A node that has those takes the claims over.
  for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
    if lacks(output) then
      redis.call('ZADD', claims .. ':' .. output, 0, name)
    end
  end
  if not is_awaited(name) then
    close(minute)
    let_expire(counts)
  end
  redis.call('HDEL', arrivals, name)
  redis.call('ZREM', claims, name)
  redis.call('HDEL', tokens, name)
  return {sealed, late, 0, token, granted}
end

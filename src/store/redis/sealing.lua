-- Functions shared by the scripts that seal counts.

-- The outputs that the counts are sealed for, and whether the users are kept, because one of these is the rollups.
local ours, keeps_users = {}, false
for output in string.gmatch(sealed_for, '%S+') do
  ours[#ours + 1] = output
  keeps_users = keeps_users or output == 'rollup'
end

-- If silent series get zeros: for how many minutes, how many series can, the partition count, the next minute if it has the
-- same count, and the overflow series. With another count, the partition has other series, so `active` is another key.
local zeros, active_max, divided, next_name, overflow = string.match(zeros_for, '^(%d+) (%d+) (%d+) (%S*) (.*)$')
active = zeros and active .. ':' .. divided

-- The maximum number of series that a step looks at together.
local LOOKED_AT = 500

local function is_closed(one)
  local since = tonumber(redis.call('HGET', witness, 'since'))
  return redis.call('ZSCORE', closed, one) or (since and tonumber(one) < since)
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

-- Notes the last minute with events of these series, each followed by its counts, after removing series that have been silent
-- for long. If there are too many, new ones are ignored.
local function watch(fields)
  in_slices(redis.call('ZRANGEBYSCORE', active, '-inf', minute - 2 * zeros, 'LIMIT', 0, LOOKED_AT), function(...)
    redis.call('ZREM', active, ...)
  end)
  local scores = {}
  for i = 1, #fields, 2 do
    if fields[i + 1] ~= '0:0' and fields[i] ~= overflow then
      scores[#scores + 1], scores[#scores + 2] = minute, fields[i]
    end
  end
  local which = redis.call('ZCARD', active) < tonumber(active_max) and 'CH' or 'XX'
  in_slices(scores, function(...)
    redis.call('ZADD', active, which, 'GT', ...)
    redis.call('PEXPIRE', active, kept_ms + zeros * 60000)
  end)
end

-- Seals the counts of these series, each `<users>:<events>`, for the outputs in `ours`. Counts that are sealed already stay
-- unchanged. Returns the number of series sealed, and the total number of events that the claim's holder found late. No new
-- counts are sealed for a closed minute: its counts may have been lost here, but they have been published. `unsent` is
-- written before `counts`, so if the script stops in between (a migrating slot), the next call repairs the state.
local function seal(series, values)
  local is_late = is_closed(minute)
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
  if zeros then
    watch(fields)
  end
  in_slices(fields, function(...)
    redis.call('HSET', counts, ...)
  end)
  return #new, late
end

-- Seals zeros for the series that have no events in the minute, but had some in one of the `zeros` minutes before it. In a
-- minute with an overflow series, it is not known which these are. Returns the number of series sealed, and 1 if there may be
-- more, which the next step seals.
local function seal_zeros()
  if not zeros or is_closed(minute) or redis.call('HEXISTS', counts, overflow) == 1 then
    return 0, 0
  end
  local silent, values, looked, is_last = {}, {}, 0, false
  while #silent < LOOKED_AT and not is_last do
    local some = redis.call('ZRANGEBYSCORE', active, minute - zeros, minute - 1, 'LIMIT', looked, LOOKED_AT)
    looked, is_last = looked + #some, #some < LOOKED_AT
    in_slices(some, function(...)
      for i, known in ipairs(redis.call('HMGET', counts, ...)) do
        if not known or known == '' then
          silent[#silent + 1], values[#values + 1] = some[i], '0:0'
        end
      end
    end)
  end
  return seal(silent, values), is_last and 0 or 1
end

-- Registers the next minute, which may get no events, if a series could get a zero in it.
local function await_next()
  local following = whole(minute + 1)
  if
    next_name ~= ''
    and redis.call('ZCOUNT', active, minute + 1 - zeros, minute) > 0
    and not is_closed(following)
  then
    redis.call('ZADD', minutes, 'NX', following, next_name)
  end
end

-- Ends a step of sealing. After the last series, the claim ends, and its holder gets a claim to send for each output that is
-- missing counts. These claims are created before the claim to seal is removed. Returns {series sealed, total number of
-- events that the caller found late, series left, token of the claims to send, their outputs}.
local function end_step(sealed, late, left)
  if left == 0 then
    local of_zeros
    of_zeros, left = seal_zeros()
    sealed = sealed + of_zeros
  end
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

  if zeros then
    await_next()
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

#!lua flags=allow-oom
-- Turns sets of a claimed minute into counts. Returns what `end_step` returns, or nothing if the claim is not held.
--
-- The sets are read before the first write, and the counts are written before the sets are dropped. Keys of the sets, and of
-- outputs unknown to the caller, cannot be in KEYS: event_types and outputs hold their names. They have the same hash tag.
if redis.call('HGET', tokens, name) ~= token then
  return false
end
local series = redis.call('SRANDMEMBER', event_types, series_max)
local values, sets = {}, {}
keeps_users = keeps_users and not is_closed(minute)
for i, one in ipairs(series) do
  local of_users, of_events = base .. 'unique_user:' .. one, base .. 'cumulative_user:' .. one
  local users = redis.call('SCARD', of_users)
  if keeps_users and redis.call('HSTRLEN', counts, one) == 0 then
    -- The users of a sealed series stay the same until they have been added to windows. An earlier call may have kept them
    -- and then failed.
    local kept = base .. 'sealed_user:' .. one
    if redis.call('EXISTS', kept) == 1 then
      in_slices(redis.call('SMEMBERS', of_users), function(...)
        redis.call('SADD', kept, ...)
      end)
      redis.call('UNLINK', of_users)
      users = redis.call('SCARD', kept)
    elseif users > 0 then
      redis.call('RENAME', of_users, kept)
    end
  end
  values[i] = users .. ':' .. redis.call('SCARD', of_events)
  sets[2 * i - 1], sets[2 * i] = of_users, of_events
end
local sealed, late = seal(series, values)
in_slices(sets, function(...)
  redis.call('UNLINK', ...)
end)
in_slices(series, function(...)
  redis.call('SREM', event_types, ...)
end)
return end_step(sealed, late, redis.call('SCARD', event_types))

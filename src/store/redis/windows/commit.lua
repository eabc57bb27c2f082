#!lua flags=allow-oom
-- Adds a list of users to a window: those of the minute at `offset` in the window, of the partition `source`. If the minute has
-- no users of the rollup, there are no frames and no list, and the minute is only noted. They are added once, however often nodes try. A list that is not added is dropped. Returns the number of lists in the window, 0 if the users
-- had been added, -1 if the window is closed, or nothing if the list is incomplete.
local list, mark = base .. 'log:' .. log, base .. 'had:' .. source
local since = tonumber(redis.call('HGET', witness, 'since'))
if redis.call('ZSCORE', closed, minute) or (since and tonumber(minute) < since) then
  redis.call('UNLINK', list)
  return -1
end
if redis.call('GETBIT', mark, offset) == 1 then
  redis.call('UNLINK', list)
  return 0
end
if redis.call('LLEN', list) ~= tonumber(frames) then
  return false
end
if frames ~= '0' then
  -- The minute is registered first, so that an error in between does not hide the list.
  redis.call('ZADD', minutes, 'NX', minute, name)
  redis.call('HINCRBY', arrivals, name, 1)
  redis.call('SADD', logs, log)
  redis.call('PERSIST', list)
  redis.call('PERSIST', counts)
end
redis.call('SETBIT', mark, offset, 1)
-- While the window has users, the mark must outlast any outage.
local lists = redis.call('SCARD', logs)
redis.call('PEXPIRE', mark, lists > 0 and open_mark_ms or mark_ms)
return lists

#!lua flags=allow-oom
-- The last command of a transaction that appends frames to a process's log of a minute: takes the frames back if the log is not as
-- the process knows it. Returns 1, or 0 when the log is another one: it was cut or used up, or has frames that were not confirmed to
-- the process. Then the process begins a new log.
--
-- The frames themselves do not go through Lua, which would hash every byte of them.
if redis.call('LLEN', log) == tonumber(length) and redis.call('HEXISTS', cut, log_name) == 0 then
  redis.call('HINCRBY', arrivals, name, events)
  return 1
end
redis.call('LTRIM', log, 0, -1 - added)
return 0

#!lua flags=allow-oom
-- The last command in a transaction that appends frames to a process's log for a minute. Removes them if the log is not in
-- the expected state. Returns 1, or 0 if the log was cut, is gone, or has other frames; the process then starts a new log.
--
-- The frames themselves do not pass through Lua, which would hash every byte of them.
if redis.call('LLEN', log) == tonumber(length) and redis.call('HEXISTS', cut, log_name) == 0 then
  redis.call('HINCRBY', arrivals, name, events)
  return 1
end
redis.call('LTRIM', log, 0, -1 - added)
return 0

#!lua flags=allow-oom
-- The last command of a transaction that appends frames to a process's log of a minute. Removes the frames if the log is not
-- in the state that the process knows. Returns 1, or 0 if the state differs because the log was cut or used up, or has frames
-- that were not acknowledged to the process. The process then starts a new log.
--
-- The frames themselves do not pass through Lua, which would hash every byte of them.
if redis.call('LLEN', log) == tonumber(length) and redis.call('HEXISTS', cut, log_name) == 0 then
  redis.call('HINCRBY', arrivals, name, events)
  return 1
end
redis.call('LTRIM', log, 0, -1 - added)
return 0

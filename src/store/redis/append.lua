#!lua flags=allow-oom
-- The last command of a transaction that appends frames to a process's log of a minute: takes the frames back if the log is not as
-- the process knows it.
--
-- KEYS  log, cut, arrivals
-- ARGV  the log's name, how many frames it has with these, how many these are, minute's name, events in these frames
-- Gives 1, or 0 when the log is another one: it was cut or used up, or has what the process heard no answer to. Then the process
--       begins a new one.
--
-- The frames themselves do not go through Lua, which would hash every byte of them.
local log, cut, arrivals = unpack(KEYS)
if redis.call('LLEN', log) == tonumber(ARGV[2]) and redis.call('HEXISTS', cut, ARGV[1]) == 0 then
  redis.call('HINCRBY', arrivals, ARGV[4], ARGV[5])
  return 1
end
redis.call('LTRIM', log, 0, -1 - ARGV[3])
return 0

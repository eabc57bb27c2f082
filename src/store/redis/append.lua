#!lua flags=allow-oom
-- The last command of a transaction that appends a frame to a process's log of a minute: takes the frame back if the log is not as
-- the process knows it.
--
-- KEYS  log, cut, arrivals
-- ARGV  the log's name, how many frames it has with this one, minute's name, events in the frame
-- Gives 1, or 0 when the log is another one: it was cut or used up, or has what the process heard no answer to. Then the process
--       begins a new one.
--
-- The frame itself does not go through Lua, which would hash every byte of it.
local log, cut, arrivals = unpack(KEYS)
if redis.call('LLEN', log) == tonumber(ARGV[2]) and redis.call('HEXISTS', cut, ARGV[1]) == 0 then
  redis.call('HINCRBY', arrivals, ARGV[3], ARGV[4])
  return 1
end
redis.call('LTRIM', log, 0, -2)
return 0

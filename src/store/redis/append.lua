#!lua
-- Appends a frame to a process's log of a minute, if the log is as the process knows it.
--
-- KEYS  log, logs, cut, minutes, arrivals, counts, coverage
-- ARGV  the log's name, how many frames it has, the frame, minute's name, epoch minute, events in the frame, process, how many
--       events of the minute it has seen (empty: not told), how long to keep that in ms (empty: as it is)
-- Gives 1, or 0 when the log is another one: it was cut or used up, or has what the process heard no answer to. Then the process
--       begins a new one.
--
-- What leads to the log is there before it, so that an error between two commands leaves none that nobody finds. Not for when
-- Redis is over its memory limit.
local log, logs, cut, minutes, arrivals, counts, coverage = unpack(KEYS)
local name = ARGV[1]
if redis.call('LLEN', log) ~= tonumber(ARGV[2]) or redis.call('HEXISTS', cut, name) == 1 then
  return 0
end
redis.call('ZADD', minutes, 'NX', ARGV[5], ARGV[4])
if ARGV[2] == '0' then
  redis.call('SADD', logs, name)
end
redis.call('RPUSH', log, ARGV[3])
redis.call('HINCRBY', arrivals, ARGV[4], ARGV[6])
redis.call('PERSIST', counts)
if ARGV[8] ~= '' then
  redis.call('HSET', coverage, ARGV[7], ARGV[8])
end
if ARGV[9] ~= '' then
  redis.call('PEXPIRE', coverage, ARGV[9])
end
return 1

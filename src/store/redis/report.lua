#!lua flags=allow-oom
-- Keeps what a node says of itself, for a while; also when memory is short, for it takes the place of what it said before.
--
-- KEYS  the node, all nodes
-- ARGV  its name, what it says (none: nothing is kept any more), for how long in ms
-- Gives what it, or another process of its name, said before, if anything
local node, all = unpack(KEYS)
local name, report, kept_ms = unpack(ARGV)
local before = redis.call('GET', node)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if report == '' then
  redis.call('UNLINK', node)
  redis.call('ZREM', all, name)
else
  redis.call('SET', node, report, 'PX', kept_ms)
  redis.call('ZADD', all, now, name)
  redis.call('PEXPIRE', all, kept_ms)
end
for _, silent in ipairs(redis.call('ZRANGEBYSCORE', all, '-inf', now - kept_ms, 'LIMIT', 0, 100)) do
  redis.call('ZREM', all, silent)
end
return before

#!lua flags=allow-oom
-- Stores a node's report, or removes it if it is empty. Works even when memory is short, because it replaces the previous
-- report. Returns the previous report, which may be from a different process with the same name.
local before = redis.call('GET', node)
local _, now = clock()
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

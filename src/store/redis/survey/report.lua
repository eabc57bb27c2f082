#!lua flags=allow-oom
-- Stores the report of a node (removes it if empty), even when memory is short, because it replaces the last report. Returns
-- the last report of the node, or of another process with the same name.
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

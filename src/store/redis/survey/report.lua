#!lua flags=allow-oom
-- Stores a node's report, or removes the old one if `report` is empty. Works even when memory is short, because the new
-- report replaces the old one. Returns the old report, which may be from a different process with the same name.
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

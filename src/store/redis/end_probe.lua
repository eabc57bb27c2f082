#!lua flags=allow-oom
-- Ends a node's turn to probe the output, if it still is its turn.
--
-- KEYS  probe
-- ARGV  node
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
return redis.status_reply('OK')

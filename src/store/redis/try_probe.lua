#!lua flags=allow-oom
-- Takes the turn to probe an output that is down, if it is nobody's. A script and not SET, which Redis refuses
-- while it is over its memory limit, just when the counts should go.
--
-- KEYS  probe
-- ARGV  node, how long the turn lasts in ms
-- Gives 1 when the turn is this node's
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return 1
end
return 0

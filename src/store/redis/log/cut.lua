#!lua flags=allow-oom
-- Fixes up to where the logs of a claimed minute are counted, for every node that seals it: they accept no more frames.
-- Before the first seal of a cut, a node that takes over cuts again: events that were recorded again since are not late.
-- Returns each log with its number of frames, and `done` with the number of series that are sealed by this cut, or -1 when all
-- are; or nothing when the claim is not held.
if redis.call('HGET', tokens, name) ~= token then
  return false
end
local done = redis.call('HGET', cut, 'done')
if not done or done == '0' then
  local all = {'done', 0}
  for _, log in ipairs(redis.call('SMEMBERS', logs)) do
    all[#all + 1] = log
    all[#all + 1] = redis.call('LLEN', base .. 'log:' .. log)
  end
  -- One command where possible: unpack has a limit.
  for from = 1, #all, 6000 do
    redis.call('HSET', cut, unpack(all, from, math.min(from + 5999, #all)))
  end
end
return redis.call('HGETALL', cut)

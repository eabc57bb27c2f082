#!lua flags=allow-oom
-- Fixes how many frames of each log of a claimed minute are counted, whichever nodes seal the minute. The logs accept no
-- more frames after that. Until a series in the cut has been sealed, a node that takes over cuts again, so that events
-- re-recorded in the meantime are not late. Returns each log with its number of frames, and `done` with the number of series
-- sealed from this cut, or -1 if all are. Returns nothing if the claim is not held.
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
  -- Uses a single command where possible; a limit of unpack may require more.
  for from = 1, #all, 6000 do
    redis.call('HSET', cut, unpack(all, from, math.min(from + 5999, #all)))
  end
end
return redis.call('HGETALL', cut)

#!lua flags=allow-oom
-- Fixes up to where the logs of a claimed minute are counted, for whoever seals it: nothing is appended to them any more. As long
-- as nothing is sealed by a cut, whoever takes over cuts again: what was recorded again meanwhile is no copy that comes late.
--
-- KEYS  tokens, logs, cut
-- ARGV  minute's name, token, what the names of logs begin with
-- Gives each log with its number of frames, and `done` with the number of series that are sealed by this cut, or -1 when all
--       are; or nothing when the claim is not held
local tokens, logs, cut = unpack(KEYS)
if redis.call('HGET', tokens, ARGV[1]) ~= ARGV[2] then
  return false
end
local done = redis.call('HGET', cut, 'done')
if not done or done == '0' then
  local all = {'done', 0}
  for _, log in ipairs(redis.call('SMEMBERS', logs)) do
    all[#all + 1] = log
    all[#all + 1] = redis.call('LLEN', ARGV[3] .. log)
  end
  -- At once, and in slices only where there are more than unpack can take.
  for from = 1, #all, 6000 do
    redis.call('HSET', cut, unpack(all, from, math.min(from + 5999, #all)))
  end
end
return redis.call('HGETALL', cut)

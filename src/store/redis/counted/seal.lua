#!lua flags=allow-oom
-- Seals counts that the holder of a claim computed from the logs in a cut. After the last series in the cut, its logs are
-- deleted or kept, and after the last log, the claim ends. Each series is followed by its `<users>:<events>`; `from` is the index of
-- the first one among all `all` series in the cut. Returns what `end_step` returns, or nothing if the claim is not held.
--
-- Every node that counts a cut finds the same series in the same order, so a node can continue where another stopped.
if redis.call('HGET', tokens, name) ~= token then
  return false
end
local done, all = tonumber(redis.call('HGET', cut, 'done') or '-1'), tonumber(all)
local series, values = {}, {}
if tonumber(from) == done then
  for i = REST, #ARGV, 2 do
    series[#series + 1], values[#values + 1] = ARGV[i], ARGV[i + 1]
  end
end
local sealed, late = seal(series, values)
if #series > 0 then
  done = redis.call('HINCRBY', cut, 'done', #series)
  redis.call('HINCRBY', cut, 'new', sealed)
end
local left = 0
if done == -1 or done >= all then
  redis.call('HSET', cut, 'done', -1)
  -- The lists of a cut with new counts are kept until their users have been added to windows.
  local is_kept = keeps_users and tonumber(redis.call('HGET', cut, 'new') or '0') > 0
  local number = is_kept and redis.call('HINCRBY', kept, '#', 1)
  local lengths = redis.call('HGETALL', cut)
  for i = 1, #lengths, 2 do
    local log = lengths[i]
    local list = base .. 'log:' .. log
    if is_kept and redis.call('EXISTS', list) == 1 then
      -- A process that does not find its log under the usual name does not append to it.
      redis.call('RENAME', list, base .. 'kept:' .. log)
      redis.call('HSET', kept, log, number .. ':' .. lengths[i + 1])
    else
      redis.call('UNLINK', list)
    end
    redis.call('SREM', logs, log)
  end
  redis.call('UNLINK', cut)
  left = redis.call('SCARD', logs)
else
  left = all - done
end
return end_step(sealed, late, left)

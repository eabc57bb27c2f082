#!lua flags=allow-oom
-- Fixes the counts of some series as the holder of a claim counted them in the logs of a cut. With the last series of the cut its
-- logs go, and with the last log the claim ends, and its holder gets one for each output that lacks counts, to send them.
--
-- KEYS  claims, tokens, logs, counts, witness, closed, arrivals, outputs, stamps, cut; of each output its claims, tokens and unsent
-- ARGV  minute's name, token, number of outputs, lease ms, what the names of the minute's keys begin with, epoch minute, how long
--       to keep the counts in ms, how many counts to keep for a minute of that, outputs…, the place of the first of these series
--       among all of the cut, the number of all, then each series and its `<users>:<events>`
-- Gives what compact.lua gives; or nothing when the claim is not held
--
-- All who count a cut find the same series in the same order, so whoever takes over goes on behind the last that was sealed.
local _, tokens, logs, _, _, _, _, _, _, cut = unpack(KEYS)
local base, behind = ARGV[5], 9 + ARGV[3]
if redis.call('HGET', tokens, ARGV[1]) ~= ARGV[2] then
  return false
end
local ours = {unpack(ARGV, 9, behind - 1)}

local done, all = tonumber(redis.call('HGET', cut, 'done') or '-1'), tonumber(ARGV[behind + 1])
local place = tonumber(ARGV[behind])
local series, values = {}, {}
if place == done then
  for i = behind + 2, #ARGV, 2 do
    series[#series + 1], values[#values + 1] = ARGV[i], ARGV[i + 1]
  end
end
local sealed, late = seal(KEYS, ARGV, ours, series, values)
if #series > 0 then
  done = redis.call('HINCRBY', cut, 'done', #series)
end
local left = 0
if done == -1 or done >= all then
  redis.call('HSET', cut, 'done', -1)
  for _, log in ipairs(redis.call('HKEYS', cut)) do
    redis.call('UNLINK', base .. 'log:' .. log)
    redis.call('SREM', logs, log)
  end
  redis.call('UNLINK', cut)
  left = redis.call('SCARD', logs)
else
  left = all - done
end
return end_step(KEYS, ARGV, ours, sealed, late, left)

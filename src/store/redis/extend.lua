#!lua flags=allow-oom
-- Sets the deadline of claims: further away to renew them, nearer to let any node take them over.
--
-- KEYS  claims, tokens
-- ARGV  deadline in ms from now, then minute's name and token of each claim
-- Gives how many of the claims were held
local claims, tokens = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local deadline = math.floor(time[1] * 1000 + time[2] / 1000) + ARGV[1]
local held = 0
for i = 2, #ARGV, 2 do
  if redis.call('HGET', tokens, ARGV[i]) == ARGV[i + 1] then
    redis.call('ZADD', claims, 'XX', deadline, ARGV[i])
    held = held + 1
  end
end
return held

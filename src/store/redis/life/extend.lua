#!lua flags=allow-oom
-- Sets the deadline of claims, given by minute name and token, to renew or release them. Returns how many were held.
local _, now = clock()
local deadline = now + lease_ms
local held = 0
for i = REST, #ARGV, 2 do
  if redis.call('HGET', own_tokens, ARGV[i]) == ARGV[i + 1] then
    redis.call('ZADD', own_claims, 'XX', deadline, ARGV[i])
    held = held + 1
  end
end
return held

#!lua flags=allow-oom
-- Drops counts that were quarantined, as far as they are what somebody has seen.
--
-- KEYS  quarantine
-- ARGV  entry and its content, for each
-- Gives how many were dropped
local quarantine = KEYS[1]
local dropped = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', quarantine, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', quarantine, ARGV[i])
    dropped = dropped + 1
  end
end
return dropped

#!lua flags=allow-oom
-- Drops quarantined counts, given by entry and content, unless their content has changed. Returns how many were dropped.
local dropped = 0
for i = REST, #ARGV, 2 do
  if redis.call('HGET', own_quarantine, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', own_quarantine, ARGV[i])
    dropped = dropped + 1
  end
end
return dropped

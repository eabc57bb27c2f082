#!lua flags=allow-oom
-- Drops quarantined counts, each given by its entry and its content, unless they have changed since an operator saw them.
-- Returns how many were dropped.
local dropped = 0
for i = REST, #ARGV, 2 do
  if redis.call('HGET', own_quarantine, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', own_quarantine, ARGV[i])
    dropped = dropped + 1
  end
end
return dropped

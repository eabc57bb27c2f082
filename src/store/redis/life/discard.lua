#!lua flags=allow-oom
-- Drops quarantined counts that did not change since an operator saw them: for each follow the entry and its content.
-- Returns how many were dropped.
local dropped = 0
for i = REST, #ARGV, 2 do
  if redis.call('HGET', own_quarantine, ARGV[i]) == ARGV[i + 1] then
    redis.call('HDEL', own_quarantine, ARGV[i])
    dropped = dropped + 1
  end
end
return dropped

#!lua flags=allow-oom
-- Takes counts of an output's quarantine back to be sent to it; the series follow. Returns how many of them were quarantined.
--
-- Existing counts stay as they are, so that no point gets a second value; forgotten counts are restored from
-- the entry. The entry goes last: an error between two commands leaves it to be taken again. A minute that
-- no node sends gets a claim that has lapsed, so that any node takes it over; a claimed minute keeps its claim while
-- `unsent` is not empty.
local taken = 0
for i = REST, #ARGV do
  local series = ARGV[i]
  local kept = redis.call('HGET', own_quarantine, name .. ':' .. series)
  local count = kept and string.match(kept, '^(%d+:%d+)|')
  if count then
    redis.call('SADD', outputs, output)
    redis.call('ZADD', own_claims, 'NX', 0, name)
    -- Empty: the counts were forgotten, and the series was admitted again since.
    if redis.call('HSTRLEN', counts, series) == 0 then
      redis.call('HSET', counts, series, count)
    end
    redis.call('PERSIST', counts)
    redis.call('SADD', unsent, series)
    redis.call('HDEL', own_quarantine, name .. ':' .. series)
    taken = taken + 1
  end
end
return taken

#!lua flags=allow-oom
-- Moves counts of the given series from an output's quarantine back to its unsent counts. Returns how many were moved.
--
-- Existing counts stay unchanged, so that no point gets a second value; lost counts are restored from the entry. The entry
-- is removed last, so that after an error between two commands it can be requeued again. A minute that no node is sending
-- gets a lapsed claim, so that any node takes it over; a claimed minute keeps its claim as long as `unsent` is not empty.
local taken = 0
for i = REST, #ARGV do
  local series = ARGV[i]
  local kept = redis.call('HGET', own_quarantine, name .. ':' .. series)
  local count = kept and string.match(kept, '^([~!]*%d+:%d+)|')
  if count then
    redis.call('SADD', outputs, output)
    redis.call('ZADD', own_claims, 'NX', 0, name)
    -- The value is empty if the counts were lost and the series has been admitted again since.
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

#!lua flags=allow-oom
-- Takes counts of an output's quarantine back to be sent to it.
--
-- KEYS  the output's claims, counts, the output's unsent and quarantine, outputs
-- ARGV  minute's name, output, series…
-- Gives how many of the series were quarantined
--
-- Counts that are there stay as they are, so that no point gets a second value; those that were forgotten come
-- back from the entry. The entry goes last: an error between two commands leaves it to be taken again. A minute that
-- nobody sends gets a claim that has lapsed, so that any node takes it over; one that is claimed keeps its claim as long
-- as `unsent` is not empty.
local claims, counts, unsent, quarantine, outputs = unpack(KEYS)
local name = ARGV[1]
local taken = 0
for i = 3, #ARGV do
  local series = ARGV[i]
  local kept = redis.call('HGET', quarantine, name .. ':' .. series)
  local count = kept and string.match(kept, '^(%d+:%d+)|')
  if count then
    redis.call('SADD', outputs, ARGV[2])
    redis.call('ZADD', claims, 'NX', 0, name)
    -- Empty: the counts were forgotten, and the series was admitted again since.
    if redis.call('HSTRLEN', counts, series) == 0 then
      redis.call('HSET', counts, series, count)
    end
    redis.call('PERSIST', counts)
    redis.call('SADD', unsent, series)
    redis.call('HDEL', quarantine, name .. ':' .. series)
    taken = taken + 1
  end
end
return taken

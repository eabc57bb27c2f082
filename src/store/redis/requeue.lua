#!lua flags=allow-oom
-- Takes counts of the quarantine back to be sent.
--
-- KEYS  minutes, counts, unsent, quarantine
-- ARGV  minute's name, epoch minute, series…
-- Gives how many of the series were quarantined
--
-- Counts that are there stay as they are, so that no point gets a second value; those that were forgotten come
-- back from the entry. The entry goes last: an error between two commands leaves it to be taken again. A minute
-- that is claimed keeps its claim as long as `unsent` is not empty.
local minutes, counts, unsent, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name = ARGV[1]
local taken = 0
for i = 3, #ARGV do
  local series = ARGV[i]
  local kept = redis.call('HGET', quarantine, name .. ':' .. series)
  local count = kept and string.match(kept, '^(%d+:%d+)|')
  if count then
    redis.call('ZADD', minutes, 'NX', ARGV[2], name)
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

#!lua flags=no-writes,allow-oom
-- Says what a partition has to do.
--
-- KEYS  minutes, claims, quarantine, outputs
-- ARGV  epoch minute before which minutes count as old
-- Gives {minutes that wait, how many of them are old, the first of them if any, minutes claimed to be sealed, and for each output {its name, minutes
--       that it lacks, counts in its quarantine}}
local minutes, claims, quarantine, outputs = unpack(KEYS)
local of_outputs = {}
for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
  local of = ':' .. output
  of_outputs[#of_outputs + 1] =
    {output, redis.call('ZRANGE', claims .. of, 0, -1), redis.call('HLEN', quarantine .. of)}
end
local old = redis.call('ZCOUNT', minutes, '-inf', '(' .. ARGV[1])
return {redis.call('ZCARD', minutes), old, redis.call('ZRANGE', minutes, 0, 0), redis.call('ZRANGE', claims, 0, -1), of_outputs}

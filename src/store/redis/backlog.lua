#!lua flags=no-writes,allow-oom
-- Says what a partition has to do.
--
-- KEYS  minutes, claims, quarantine, outputs
-- Gives {minutes that wait, the first of them if any, minutes claimed to be sealed, and for each output {its name, minutes
--       that it lacks, counts in its quarantine}}
local minutes, claims, quarantine, outputs = unpack(KEYS)
local of_outputs = {}
for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
  local of = ':' .. output
  of_outputs[#of_outputs + 1] =
    {output, redis.call('ZRANGE', claims .. of, 0, -1), redis.call('HLEN', quarantine .. of)}
end
return {redis.call('ZCARD', minutes), redis.call('ZRANGE', minutes, 0, 0), redis.call('ZRANGE', claims, 0, -1), of_outputs}

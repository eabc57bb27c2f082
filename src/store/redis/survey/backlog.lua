#!lua flags=no-writes,allow-oom
-- Returns the backlog of a partition: {number of waiting minutes, how many are before `old_before`, the first if any,
-- minutes claimed for sealing, and for each output {its name, minutes it is missing, number of counts in its quarantine}}.
local of_outputs = {}
for _, output in ipairs(redis.call('SMEMBERS', outputs)) do
  local of = ':' .. output
  of_outputs[#of_outputs + 1] =
    {output, redis.call('ZRANGE', claims .. of, 0, -1), redis.call('HLEN', quarantine .. of)}
end
local old = redis.call('ZCOUNT', minutes, '-inf', '(' .. old_before)
return {redis.call('ZCARD', minutes), old, redis.call('ZRANGE', minutes, 0, 0), redis.call('ZRANGE', claims, 0, -1), of_outputs}

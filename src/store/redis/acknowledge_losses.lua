#!lua flags=allow-oom
-- Marks losses as acknowledged, as far as they were seen: what was lost since then is not.
--
-- KEYS  the record
-- ARGV  of each entry its name and the amount that was seen
local losses = KEYS[1]
for i = 1, #ARGV, 2 do
  local entry = redis.call('HGET', losses, ARGV[i])
  local amount, acknowledged, at = string.match(entry or '', '^(%d+)|(%d+)|(%d+)$')
  if amount then
    local seen = math.min(tonumber(ARGV[i + 1]), tonumber(amount))
    if seen > tonumber(acknowledged) then
      redis.call('HSET', losses, ARGV[i], amount .. '|' .. string.format('%.0f', seen) .. '|' .. at)
    end
  end
end

#!lua flags=allow-oom
-- Marks losses as acknowledged up to the amounts that the operator saw. Each loss is given by its name and this amount.
for i = REST, #ARGV, 2 do
  local entry = redis.call('HGET', losses, ARGV[i])
  local amount, acknowledged, at = string.match(entry or '', '^(%d+)|(%d+)|(%d+)$')
  if amount then
    local seen = math.min(tonumber(ARGV[i + 1]), tonumber(amount))
    if seen > tonumber(acknowledged) then
      redis.call('HSET', losses, ARGV[i], amount .. '|' .. string.format('%.0f', seen) .. '|' .. at)
    end
  end
end

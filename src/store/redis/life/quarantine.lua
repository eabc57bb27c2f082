#!lua flags=allow-oom
-- Moves rejected counts from an output's `unsent` to its quarantine. Each count is given by its series and the server's
-- message. Returns 1 for each count that was kept and 0 if the quarantine was full, or nothing if the claim is not held.
if redis.call('HGET', own_tokens, name) ~= token then
  return false
end
local now = redis.call('TIME')[1]
local most, entries = tonumber(entries_max), redis.call('HLEN', own_quarantine)
local kept = {}
for i = REST, #ARGV, 2 do
  local series = ARGV[i]
  local entry = name .. ':' .. series
  local is_there = redis.call('HEXISTS', own_quarantine, entry) == 1
  local count = redis.call('HGET', counts, series)
  if not count or count == '' then
    -- Redis has lost the counts: they will be sealed again, or the minute is closed.
    kept[#kept + 1] = 1
  elseif is_there or entries < most then
    redis.call('HSET', own_quarantine, entry, string.format('%s|%s|%s', count, now, ARGV[i + 1]))
    entries = entries + (is_there and 0 or 1)
    kept[#kept + 1] = 1
  else
    kept[#kept + 1] = 0
  end
  redis.call('SREM', unsent, series)
end
return kept

#!lua flags=allow-oom
-- Takes counts that an output refuses out of its `unsent` and keeps them with the server's message.
--
-- KEYS  the output's tokens, counts, the output's unsent and quarantine
-- ARGV  minute's name, token, most entries, then for each count: series, the server's message
-- Gives for each count 1 when it is kept, 0 when the quarantine is full; or nothing when the claim is not held
local tokens, counts, unsent, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, entries_max = ARGV[1], tonumber(ARGV[3])
if redis.call('HGET', tokens, name) ~= ARGV[2] then
  return false
end
local now = redis.call('TIME')[1]
local entries = redis.call('HLEN', quarantine)
local kept = {}
for i = 4, #ARGV, 2 do
  local series = ARGV[i]
  local entry = name .. ':' .. series
  local is_there = redis.call('HEXISTS', quarantine, entry) == 1
  local count = redis.call('HGET', counts, series)
  if not count or count == '' then
    -- Redis went back, and lacks them: they come to be sealed again, or are closed.
    kept[#kept + 1] = 1
  elseif is_there or entries < entries_max then
    redis.call('HSET', quarantine, entry, string.format('%s|%s|%s', count, now, ARGV[i + 1]))
    entries = entries + (is_there and 0 or 1)
    kept[#kept + 1] = 1
  else
    kept[#kept + 1] = 0
  end
  redis.call('SREM', unsent, series)
end
return kept

#!lua flags=allow-oom
-- Takes counts that the output refuses out of `unsent` and keeps them with the server's words.
--
-- KEYS  tokens, counts, unsent, quarantine
-- ARGV  minute's name, token, most entries, series, the server's words
-- Gives 1 when they are kept, 0 when the quarantine is full, or nothing when the claim is not held
local tokens, counts, unsent, quarantine = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, token, series = ARGV[1], ARGV[2], ARGV[4]
if redis.call('HGET', tokens, name) ~= token then
  return false
end
local count = redis.call('HGET', counts, series)
if not count or count == '' then
  -- Redis went back, and lacks them: they come to be sealed again, or are closed.
  redis.call('SREM', unsent, series)
  return 1
end
local entry = name .. ':' .. series
local kept = 0
if redis.call('HLEN', quarantine) < tonumber(ARGV[3]) or redis.call('HEXISTS', quarantine, entry) == 1 then
  local time = redis.call('TIME')
  redis.call('HSET', quarantine, entry, string.format('%s|%s|%s', count, time[1], ARGV[5]))
  kept = 1
end
redis.call('SREM', unsent, series)
return kept

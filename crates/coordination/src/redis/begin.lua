-- Reads a value, or takes the right to compute it.
--
-- KEYS  lock, entry
-- ARGV  holder, lock's ttl us, the token of the value that is not good enough ('': any value is)
-- Gives {'value', {value, token, cost us, written, expires, now}}, {'failed', {message}},
--       {'granted', {token}} or {'busy', {us until the right is free again}}
local lock, entry = KEYS[1], KEYS[2]
local holder, ttl, outdated = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local value = value_of(entry, outdated)
if value then
  return {'value', value}
end
local failure = redis.call('HMGET', entry, 'error', 'error_expires')
if tonumber(failure[2] or '0') > now then
  return {'failed', {failure[1]}}
end
if is_held(lock) and redis.call('HGET', lock, 'holder') ~= holder then
  return {'busy', {whole(tonumber(redis.call('HGET', lock, 'until')) - now)}}
end
return {'granted', {grant(lock, holder, ttl)}}

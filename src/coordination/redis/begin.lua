-- Reads a value, or takes the right to compute it.
--
-- KEYS  lock, entry
-- ARGV  holder, lock's ttl us, the token of the value that is not good enough ('': any value is)
-- Gives {'value', {value, token, cost us, written, expires, now}}, {'failed', {message}},
--       {'granted', {token}} or {'busy', {us until the right is free again}}
local lock, entry = KEYS[1], KEYS[2]
local holder, ttl, outdated = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local found = redis.call('HMGET', entry,
  'token', 'cost', 'written', 'expires', 'error', 'error_expires')
local token, expires = found[1], tonumber(found[4] or '0')
if expires > now and token ~= outdated then
  local value = redis.call('HGET', entry, 'value')
  return {'value', {value, token, found[2], found[3], found[4], whole(now)}}
end
if tonumber(found[6] or '0') > now then
  return {'failed', {found[5]}}
end
if is_held(lock) and redis.call('HGET', lock, 'holder') ~= holder then
  return {'busy', {whole(tonumber(redis.call('HGET', lock, 'until')) - now)}}
end
return {'granted', {grant(lock, holder, ttl)}}

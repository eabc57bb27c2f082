-- The value of an entry: {value, token, cost us, written, expires, now}; nil when there is none, or one with this token.
local function value_of(entry, outdated)
  local found = redis.call('HMGET', entry, 'token', 'cost', 'written', 'expires')
  if tonumber(found[4] or '0') <= now or found[1] == outdated then
    return nil
  end
  local value = redis.call('HGET', entry, 'value')
  return {value, found[1], found[2], found[3], found[4], whole(now)}
end

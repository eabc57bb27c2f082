-- Whether a writer of a list is the newest, or has no token. It is the last from then on: `writer` keeps its token.
local function is_newest(writer, token, kept_ms)
  if token == '' then
    return true
  end
  local last = redis.call('GET', writer)
  if last and tonumber(last) > tonumber(token) then
    return false
  end
  redis.call('SET', writer, token, 'PX', kept_ms)
  return true
end

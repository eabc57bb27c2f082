-- A lock is a hash: token, holder, until (the instant at which it is free again; 0 when it was released).
-- It outlives its last holder by KEPT_MS, so that tokens grow also when the clock is set back meanwhile.
local KEPT_MS = 600000

local function is_held(lock)
  return tonumber(redis.call('HGET', lock, 'until') or '0') > now
end

-- The token is the clock, or one more than the last where that is not enough.
local function grant(lock, holder, ttl_us)
  local last = redis.call('HGET', lock, 'token')
  local token = now
  if last then
    token = math.max(now, tonumber(last) + 1)
  end
  redis.call('HSET', lock, 'token', whole(token), 'holder', holder, 'until', whole(now + ttl_us))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl_us / 1000) + KEPT_MS))
  return whole(token)
end

-- A lock is a hash: token, holder, until (the instant at which it is free again; 0 when it was released), released (the last
-- token that was unlocked).
-- It outlives its last holder by KEPT_MS, so that tokens grow also when the clock is set back meanwhile.
local KEPT_MS = 600000

local function is_held(lock)
  return tonumber(redis.call('HGET', lock, 'until') or '0') > now
end

-- Whether its last holder released it, so that it did not lapse.
local function is_released(lock)
  return redis.call('HGET', lock, 'until') == '0'
end

-- A holder that asks again, since the answer was lost, has the lock for longer, and the same token. A new one has the
-- clock for its token, or one more than the last where that is not enough.
local function grant(lock, holder, ttl_us)
  local last = redis.call('HMGET', lock, 'token', 'holder')
  local token = now
  if last[1] and last[2] == holder and is_held(lock) then
    token = tonumber(last[1])
  elseif last[1] then
    token = math.max(now, tonumber(last[1]) + 1)
  end
  redis.call('HSET', lock, 'token', whole(token), 'holder', holder, 'until', whole(now + ttl_us))
  redis.call('PEXPIRE', lock, whole(math.ceil(ttl_us / 1000) + KEPT_MS))
  return whole(token)
end

#!lua flags=allow-oom
-- Drops the unsent counts of a removed output in the given minutes and, after the last minute, its quarantine and its name.
-- The name stays while any minute is claimed for sealing, because a node that still had the output may have sealed part of
-- that minute. `to_seal` is the name of a minute's key that has members as long as there is something to seal. The name and
-- the epoch minute are given for each minute. Returns {counts dropped, quarantined counts dropped, 1 if no minute is left}.
local of = ':' .. output
local dropped = 0
for i = REST, #ARGV, 2 do
  local name, minute = ARGV[i], ARGV[i + 1]
  local base = tag .. ':' .. name .. ':'
  dropped = dropped + redis.call('SCARD', base .. 'unsent' .. of)
  if output == 'rollup' then
    for _, series in ipairs(redis.call('SMEMBERS', base .. 'unsent' .. of)) do
      redis.call('UNLINK', base .. 'sealed_user:' .. series)
    end
    for _, log in ipairs(redis.call('HKEYS', base .. 'kept')) do
      redis.call('UNLINK', base .. 'kept:' .. log)
    end
    redis.call('UNLINK', base .. 'kept')
  end
  redis.call('UNLINK', base .. 'unsent' .. of)
  if redis.call('SCARD', base .. to_seal) == 0 and not is_awaited(name, claims .. of) then
    close(minute)
    let_expire(base .. 'counts')
  end
  redis.call('ZREM', claims .. of, name)
  redis.call('HDEL', tokens .. of, name)
end
if redis.call('ZCARD', claims .. of) > 0 then
  return {dropped, 0, 0}
end
local refused = redis.call('HLEN', quarantine .. of)
redis.call('UNLINK', tokens .. of, quarantine .. of)
if redis.call('ZCARD', claims) == 0 then
  redis.call('SREM', outputs, output)
end
return {dropped, refused, 1}

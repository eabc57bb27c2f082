#!lua flags=allow-oom
-- Drops the unsent counts of an output that was removed, and after the last minute its quarantine and its name; but the name
-- stays while a minute is claimed to be sealed, of which a node that still had the output may have sealed a part. `to_seal` names the
-- key of a minute that has members while there is something to seal. Name and epoch minute of each minute follow.
-- Returns {counts dropped, counts of the quarantine dropped, 1 if no minute is left}.
local of = ':' .. output
local dropped = 0
for i = REST, #ARGV, 2 do
  local name, minute = ARGV[i], ARGV[i + 1]
  local base = tag .. ':' .. name .. ':'
  dropped = dropped + redis.call('SCARD', base .. 'unsent' .. of)
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

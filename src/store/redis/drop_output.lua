#!lua flags=allow-oom
-- Drops what waits for an output that is gone. After the last minute its quarantine goes, too, and its name; but the name
-- stays while a minute is being sealed, of which a node that still had the output may have sealed a part.
--
-- KEYS  claims, tokens, quarantine, outputs, witness, closed
-- ARGV  output, the partition's hash tag, how long to keep counts in ms, how many counts to keep for a minute of that, what the
--       names of a minute's keys end with that has something while there is something to seal, then name and epoch minute of
--       each minute that is to go
-- Gives {counts dropped, counts of the quarantine dropped, 1 if nothing is left}
local claims, tokens, quarantine, outputs, witness, closed = unpack(KEYS)
local of = ':' .. ARGV[1]
local dropped = 0
for i = 6, #ARGV, 2 do
  local name, minute = ARGV[i], ARGV[i + 1]
  local base = ARGV[2] .. ':' .. name .. ':'
  dropped = dropped + redis.call('SCARD', base .. 'unsent' .. of)
  redis.call('UNLINK', base .. 'unsent' .. of)
  if redis.call('SCARD', base .. ARGV[5]) == 0 and not is_awaited(outputs, claims, name, claims .. of) then
    close(closed, witness, minute)
    let_expire(base .. 'counts', ARGV[3], ARGV[4])
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
  redis.call('SREM', outputs, ARGV[1])
end
return {dropped, refused, 1}

-- Replaces a list and its time to live in one step, from the arguments.
--
-- KEYS  list, writer
-- ARGV  token ('': none), ms for which it is known, ttl ms, items
-- Gives 1, or 0 when a newer writer was there. RPUSH takes items by the thousand, since Lua unpacks no more than some 8000.
local list = KEYS[1]
if not is_newest(KEYS[2], ARGV[1], ARGV[2]) then
  return 0
end
redis.call('UNLINK', list)
for first = 4, #ARGV, 1000 do
  redis.call('RPUSH', list, unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
if #ARGV > 3 then
  redis.call('PEXPIRE', list, ARGV[3])
end
return 1

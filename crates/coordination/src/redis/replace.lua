-- Replaces a list and its time to live in one step, from the arguments.
--
-- KEYS  list
-- ARGV  ttl ms, items
-- Gives the number of items. RPUSH takes them by the thousand, since Lua unpacks no more than some 8000.
local list = KEYS[1]
redis.call('UNLINK', list)
for first = 2, #ARGV, 1000 do
  redis.call('RPUSH', list, unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
if #ARGV > 1 then
  redis.call('PEXPIRE', list, ARGV[1])
end
return #ARGV - 1

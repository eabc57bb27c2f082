-- Adds a piece to a list that nobody reads yet.
--
-- KEYS  staged
-- ARGV  items before this piece, ms until a piece that nobody continues goes, items
-- Gives 1, or 0 when the staged list is not what the pieces before made of it
--
-- A piece that is sent twice, since its answer was lost, is added once.
local staged, before = KEYS[1], tonumber(ARGV[1])
local length = redis.call('LLEN', staged)
if length == before + #ARGV - 2 then
  return 1
elseif length ~= before then
  return 0
end
for first = 3, #ARGV, 1000 do
  redis.call('RPUSH', staged, unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
redis.call('PEXPIRE', staged, ARGV[2])
return 1

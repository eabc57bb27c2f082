#!lua flags=no-writes
-- Reads some of a hash or a set, in a bounded time and as much as a bounded answer holds.
--
-- KEYS  the hash or the set; with a set of series, counts
-- ARGV  HSCAN or SSCAN, cursor, most bytes, which a last step may exceed
-- Gives the next cursor and the items: of a hash each field and its value, of a set each member, and with counts each member and
--       its counts, or nothing where it has none
local found, bytes, cursor = {}, 0, ARGV[2]
for _ = 1, 50 do
  local step = redis.call(ARGV[1], KEYS[1], cursor, 'COUNT', 16)
  cursor = step[1]
  for _, item in ipairs(step[2]) do
    found[#found + 1] = item
    bytes = bytes + #item
  end
  if cursor == '0' or bytes >= tonumber(ARGV[3]) then
    break
  end
end
if not KEYS[2] then
  return {cursor, found}
end
local items = {}
in_slices(found, function(...)
  for _, counts in ipairs(redis.call('HMGET', KEYS[2], ...)) do
    items[#items + 1] = found[#items / 2 + 1]
    items[#items + 1] = counts
  end
end)
return {cursor, items}

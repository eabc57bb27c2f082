#!lua flags=no-writes
-- Reads some of a hash (HSCAN) or a set (SSCAN), in a bounded time and as much as a bounded answer holds; a last step may exceed
-- `bytes_max`. Returns the next cursor and the items: of a hash each field and its value, of a set each member, and with counts, for
-- a set of series, each member and its counts, or nothing where it has none.
local found, bytes, cursor = {}, 0, first
for _ = 1, 50 do
  local step = redis.call(command, source, cursor, 'COUNT', 16)
  cursor = step[1]
  for _, item in ipairs(step[2]) do
    found[#found + 1] = item
    bytes = bytes + #item
  end
  if cursor == '0' or bytes >= tonumber(bytes_max) then
    break
  end
end
if not counts then
  return {cursor, found}
end
local items = {}
in_slices(found, function(...)
  for _, value in ipairs(redis.call('HMGET', counts, ...)) do
    items[#items + 1] = found[#items / 2 + 1]
    items[#items + 1] = value
  end
end)
return {cursor, items}

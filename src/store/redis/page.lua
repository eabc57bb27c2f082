#!lua flags=no-writes
-- Reads part of a hash (HSCAN) or a set (SSCAN), bounded in time and in the size of the reply, although the last step may
-- exceed `bytes_max`. Returns the next cursor and the items: each field and value of a hash, or each member of a set. If
-- counts are given for a set of series, each member is followed by its counts, or by nothing if it has none.
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

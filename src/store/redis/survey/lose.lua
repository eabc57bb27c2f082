#!lua flags=allow-oom
-- Adds a process's losses, given by name and total, to the loss record. An entry holds the total for its process, so adding
-- it again has no effect, and the acknowledged part stays acknowledged. `kept_ms` counts from the last increase.
--
-- A name is minute|cause|process, and an entry is amount|acknowledged|Redis' clock at the last increase in ms. If there are
-- too many entries, acknowledged ones are removed first, then the oldest, whose amounts are summed by cause under
-- `earlier|cause|`. An entry that increases after that counts both there and under its own name.
local most = tonumber(entries_max)
local _, now = clock()

local function read(entry)
  local amount, acknowledged, at = string.match(entry or '', '^(%d+)|(%d+)|(%d+)$')
  return tonumber(amount or 0), tonumber(acknowledged or 0), tonumber(at or 0)
end

local function write(name, amount, acknowledged, at)
  redis.call('HSET', losses, name, string.format('%.0f|%.0f|%.0f', amount, acknowledged, at))
end

for i = REST, #ARGV, 2 do
  local amount, acknowledged = read(redis.call('HGET', losses, ARGV[i]))
  local total = tonumber(ARGV[i + 1])
  if total > amount then
    write(ARGV[i], total, acknowledged, now)
  end
end
redis.call('PEXPIRE', losses, kept_ms)
if redis.call('HLEN', losses) <= most then
  return
end

local all, entries = redis.call('HGETALL', losses), {}
for i = 1, #all, 2 do
  local amount, acknowledged, at = read(all[i + 1])
  if now - at > tonumber(kept_ms) then
    redis.call('HDEL', losses, all[i])
  elseif not string.match(all[i], '^earlier|[^|]*|$') then
    entries[#entries + 1] = {name = all[i], left = amount - acknowledged, at = at}
  end
end
table.sort(entries, function(a, b)
  if (a.left == 0) ~= (b.left == 0) then
    return a.left == 0
  elseif a.at ~= b.at then
    return a.at < b.at
  end
  return a.name < b.name
end)
local sums = {}
-- Removes a quarter of the entries at once, so that not every call has to sort.
for i = 1, #entries - math.floor(most * 3 / 4) do
  local cause = string.match(entries[i].name, '^[^|]*|([^|]*)|') or ''
  sums[cause] = (sums[cause] or 0) + entries[i].left
  redis.call('HDEL', losses, entries[i].name)
end
for cause, left in pairs(sums) do
  if left > 0 then
    local name = 'earlier|' .. cause .. '|'
    local amount, acknowledged = read(redis.call('HGET', losses, name))
    write(name, amount + left, acknowledged, now)
  end
end

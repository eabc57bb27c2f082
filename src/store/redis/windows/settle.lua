#!lua flags=allow-oom
-- Closes the minutes of a window in a partition, which may have had no events, under the same conditions as an idle minute.
-- Returns {2 if they are closed and every live node knows, 1 if some node does not, 0 if one of them is open or its users have
-- not been added to windows; those that had events}, or nothing if Redis has lost something that the node knows.
if forgot(stamp_of(node) or 0) then
  return false
end
local _, now = clock()
local first, last = tonumber(first), tonumber(minute)
local function is_claimed(key)
  for _, one in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local date, number = string.match(one, '^(%d+):(%d+)$')
    local is_before = date < first_date or (date == first_date and tonumber(number) < tonumber(first_number))
    local is_after = date > last_date or (date == last_date and tonumber(number) > tonumber(last_number))
    if not (is_before or is_after) then
      return true
    end
  end
  return false
end
if redis.call('ZCOUNT', minutes, first, last) > 0 or is_claimed(claims) or is_claimed(claims .. ':rollup') then
  return {0, {}}
end
local wait_ms = tonumber(grace_ms)
local nodes_lagging = redis.call('HGETALL', lagging)
for i = 2, #nodes_lagging, 2 do
  if tonumber(nodes_lagging[i]) > now then
    wait_ms = math.max(wait_ms, tonumber(max_hold_ms))
  end
end
if now - (last + 1) * 60000 < wait_ms then
  return {0, {}}
end
-- Minutes before `since` are closed, and every node knows.
local since = tonumber(redis.call('HGET', witness, 'since') or first)
local numbers = {}
local listed = redis.call('ZRANGE', closed, 0, -1, 'WITHSCORES')
for i = 1, #listed, 2 do
  numbers[tonumber(listed[i])] = tonumber(listed[i + 1])
end
local newest, with_events, open = 0, {}, {}
for one = math.max(first, since), last do
  local number = numbers[one]
  if not number then
    open[#open + 1] = one
  else
    newest = math.max(newest, number)
    if number % 4 ~= 3 then
      with_events[#with_events + 1] = one
    end
  end
end
if #open > 0 then
  -- The numbers of closings are 4n + 3, like those of `close`, but are taken together.
  local before = redis.call('HINCRBY', witness, 'sequence', 2 * #open) - 2 * #open
  local scores = {}
  for i, one in ipairs(open) do
    newest = 2 * (before + before % 2 + 2 * i - 1) + 1
    scores[#scores + 1], scores[#scores + 2] = whole(newest), whole(one)
  end
  in_slices(scores, function(...)
    redis.call('ZADD', closed, ...)
  end)
end
return {newest <= heard_by_others(now) and 2 or 1, with_events}

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
local sequence, with_events = 0, {}
for one = math.max(first, since), last do
  local number = tonumber(redis.call('ZSCORE', closed, whole(one)))
  if not number then
    close(whole(one), true)
    number = tonumber(redis.call('ZSCORE', closed, whole(one)))
  end
  sequence = math.max(sequence, number)
  if number % 4 ~= 3 then
    with_events[#with_events + 1] = one
  end
end
return {sequence <= heard_by_others(now) and 2 or 1, with_events}

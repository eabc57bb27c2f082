#!lua flags=no-writes,allow-oom
-- What the nodes last said of themselves, the latest first.
--
-- KEYS  all nodes
-- ARGV  the most nodes, the most bytes of each
-- Gives for each node {its name, how long ago that was in ms, what it said}
local all = KEYS[1]
local most, bytes = unpack(ARGV)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local names = redis.call('ZRANGE', all, 0, most - 1, 'REV', 'WITHSCORES')
local reports = {}
for i = 1, #names, 2 do
  local said = redis.call('GET', all .. ':' .. names[i])
  if said then
    reports[#reports + 1] = {names[i], now - names[i + 1], string.sub(said, 1, bytes)}
  end
end
return reports

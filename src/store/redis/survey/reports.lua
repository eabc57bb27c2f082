#!lua flags=no-writes,allow-oom
-- Returns the latest report of each node, newest first: {the node's name, the age of the report in ms, the report}.
local _, now = clock()
local names = redis.call('ZRANGE', all, 0, nodes_max - 1, 'REV', 'WITHSCORES')
local reports = {}
for i = 1, #names, 2 do
  local said = redis.call('GET', all .. ':' .. names[i])
  if said then
    reports[#reports + 1] = {names[i], now - names[i + 1], string.sub(said, 1, bytes_max)}
  end
end
return reports

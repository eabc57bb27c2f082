-- The clock of every script: that of the server, in microseconds. Lua holds them exactly until the year 2255.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function whole(number)
  return string.format('%.0f', number)
end

#!lua
-- Adds users and events of series to their sets, where the names of the series are most of what is sent: each comes once.
--
-- KEYS  event_types
-- ARGV  what the names of the minute's keys begin with, then for each series its name, the number of its users, the number of its
--       events, its users and its events
-- Gives how many of the events the sets did not have
--
-- The keys of the sets cannot be declared in KEYS, since that would send the names again; they have the same hash tag.
local base, at, added = ARGV[1], 2, 0
while at <= #ARGV do
  local series, users = ARGV[at], at + 3
  local events = users + ARGV[at + 1]
  local behind = events + ARGV[at + 2]
  redis.call('SADD', KEYS[1], series)
  if events > users then
    redis.call('SADD', base .. 'unique_user:' .. series, unpack(ARGV, users, events - 1))
  end
  added = added + redis.call('SADD', base .. 'cumulative_user:' .. series, unpack(ARGV, events, behind - 1))
  at = behind
end
return added

#!lua
-- Adds users and events to the sets for their series, so that each name is sent only once. Returns the number of new events.
--
-- The arguments are, for each series, its name, the number of its users, the number of its events, its users and its events.
-- The keys of the sets are not in KEYS, since that would send the names again; they have the same hash tag.
local at, added = REST, 0
while at <= #ARGV do
  local series, users = ARGV[at], at + 3
  local events = users + ARGV[at + 1]
  local behind = events + ARGV[at + 2]
  redis.call('SADD', event_types, series)
  if events > users then
    redis.call('SADD', base .. 'unique_user:' .. series, unpack(ARGV, users, events - 1))
  end
  added = added + redis.call('SADD', base .. 'cumulative_user:' .. series, unpack(ARGV, events, behind - 1))
  at = behind
end
return added

#!lua flags=allow-oom
-- Makes it known that counts of claimed minutes are about to be written to an output, and says who has heard it. From then on the
-- minutes seal nothing new.
--
-- KEYS  tokens of the output, witness, closed, stamps
-- ARGV  node, what it knows: epoch (0: nothing), its last stamp; then for each claim the minute's name, token, epoch minute
-- Gives for each claim 2 when every node that is alive has heard it, 1 when one has not, 0 when the claim is not held and nobody
--       announced its minute; or nothing when Redis lacks what the node knows
--
-- A minute that an output has was announced before.
local tokens, witness, closed, stamps = unpack(KEYS)
local node = ARGV[1]
local own = stamp_of(stamps, node) or 0
if ARGV[2] ~= '0' and (redis.call('HGET', witness, 'epoch') ~= ARGV[2] or own < tonumber(ARGV[3])) then
  return false
end
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local heard_by_all = math.huge
local all = redis.call('HGETALL', stamps)
for i = 1, #all, 2 do
  local _, heard, alive_until = stamp_parts(all[i + 1])
  if all[i] ~= node and alive_until > now then
    heard_by_all = math.min(heard_by_all, heard)
  end
end
local since = tonumber(redis.call('HGET', witness, 'since'))
local states = {}
for i = 4, #ARGV, 3 do
  local name, token, minute = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local state = 2
  if not (since and tonumber(minute) < since) then
    if not redis.call('ZSCORE', closed, minute) and redis.call('HGET', tokens, name) ~= token then
      state = 0
    else
      local number = announce(closed, witness, minute)
      if number % 2 == 0 and number > heard_by_all then
        state = 1
      end
    end
  end
  states[#states + 1] = state
end
return states

#!lua flags=allow-oom
-- Announces that counts of claimed minutes are about to be written to an output. Each claim is given by its name, token and
-- epoch minute. Returns for each claim 2 if every live node knows of the announcement, 1 if some node does not, and 0 if the
-- claim is not held and no node has announced its minute. Returns nothing if Redis has lost something that the node knows.
--
-- If some output has all counts of a minute, all live nodes have already learned of the announcement.
if forgot(stamp_of(node) or 0) then
  return false
end
local _, now = clock()
local heard_by_all = heard_by_others(now)
local since = tonumber(redis.call('HGET', witness, 'since'))
local states = {}
for i = REST, #ARGV, 3 do
  local name, token, minute = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local state = 2
  if not (since and tonumber(minute) < since) then
    if not redis.call('ZSCORE', closed, minute) and redis.call('HGET', own_tokens, name) ~= token then
      state = 0
    else
      local number = announce(minute)
      if number % 2 == 0 and number > heard_by_all then
        state = 1
      end
    end
  end
  states[#states + 1] = state
end
return states

#!lua flags=allow-oom
-- Takes what a node knows to be closed, and says what Redis itself knows: of one partition.
--
-- KEYS  witness, closed, stamps
-- ARGV  node, epoch and its last stamp ms that it knows (0: none), an epoch that nobody has, since (empty: unknown),
--       minutes…
-- Gives {epoch, from when on nothing is known of what was before it in ms (0: from the beginning)}
--
-- An epoch lasts as long as Redis forgets nothing. It ends when a node comes whose own stamp is older than it was,
-- and by the new one all other nodes notice.
local witness, closed, stamps = KEYS[1], KEYS[2], KEYS[3]
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local known = redis.call('HMGET', witness, 'epoch', 'stamp', 'since', 'forgot_from')
local epoch, stamp, since, forgot_from = known[1], tonumber(known[2] or '0'), tonumber(known[3]), known[4] or '0'
-- What an earlier process of the node left behind has no stamp of its own.
local own = tonumber(redis.call('HGET', stamps, ARGV[1]) or stamp)
if not epoch or (epoch == ARGV[2] and own < tonumber(ARGV[3])) then
  epoch, forgot_from = ARGV[4], string.format('%.0f', own)
  redis.call('HSET', witness, 'epoch', epoch, 'forgot_from', forgot_from)
end
stamp = string.format('%.0f', math.max(stamp, now))
redis.call('HSET', witness, 'stamp', stamp)
redis.call('HSET', stamps, ARGV[1], stamp)
if ARGV[5] ~= '' and (not since or since < tonumber(ARGV[5])) then
  since = tonumber(ARGV[5])
  redis.call('HSET', witness, 'since', string.format('%.0f', since))
  for _, minute in ipairs(redis.call('ZRANGE', closed, 0, -1)) do
    if tonumber(minute) < since then
      redis.call('ZREM', closed, minute)
    end
  end
end
for i = 6, #ARGV do
  -- What is before `since` counts as closed without being listed.
  if not (since and tonumber(ARGV[i]) < since) and not redis.call('ZSCORE', closed, ARGV[i]) then
    redis.call('ZADD', closed, redis.call('HINCRBY', witness, 'sequence', 1), ARGV[i])
  end
end
return {epoch, tonumber(forgot_from)}

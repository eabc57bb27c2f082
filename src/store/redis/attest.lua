#!lua flags=allow-oom
-- Takes what a node knows to be closed, and says what Redis itself knows: of one partition.
--
-- KEYS  witness, closed
-- ARGV  epoch and stamp ms that the node knows (0: none), an epoch that nobody has, since (empty: unknown), minutes…
-- Gives {epoch, stamp ms before (0: none), since when nothing is known in ms where Redis went back before}
--
-- An epoch lasts as long as Redis forgets nothing. It ends when a node comes that has seen a later stamp than there is,
-- and the new one tells all other nodes.
local witness, closed = KEYS[1], KEYS[2]
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local known = redis.call('HMGET', witness, 'epoch', 'stamp', 'since', 'forgot_from')
local epoch, stamp, since, forgot_from = known[1], tonumber(known[2] or '0'), tonumber(known[3]), known[4] or '0'
if not epoch or (epoch == ARGV[1] and stamp < tonumber(ARGV[2])) then
  epoch, forgot_from = ARGV[3], string.format('%.0f', stamp)
  redis.call('HSET', witness, 'epoch', epoch, 'forgot_from', forgot_from)
end
redis.call('HSET', witness, 'stamp', string.format('%.0f', math.max(stamp, now)))
if ARGV[4] ~= '' and (not since or since < tonumber(ARGV[4])) then
  since = tonumber(ARGV[4])
  redis.call('HSET', witness, 'since', string.format('%.0f', since))
end
for i = 5, #ARGV do
  if not redis.call('ZSCORE', closed, ARGV[i]) then
    redis.call('ZADD', closed, redis.call('HINCRBY', witness, 'sequence', 1), ARGV[i])
  end
end
return {epoch, stamp, tonumber(forgot_from)}

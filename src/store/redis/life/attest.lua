#!lua flags=allow-oom
-- Records minutes of a partition that a node knows to be closed. The node knows an epoch, its last stamp (0: none) and
-- `known_since` (empty: unknown). No other store has `new_epoch`. The minutes are `closed`, `announced`, or `empty`.
-- Returns {epoch, the node's stamp, the last stamp before which Redis has lost nothing (0: it has nothing), its time in ms}.
--
-- An epoch ends when Redis loses something, i.e. has an older stamp for a node than the node itself knows. The new epoch
-- tells all other nodes. Stamps are numbers rather than times, because a clock that is set back must not hide a loss.
local known = redis.call('HMGET', witness, 'epoch', 'stamp', 'since', 'forgot_from', 'forgot_from_ms', 'clock')
local epoch, since = known[1], tonumber(known[3])
local forgot_from, forgot_from_ms = known[4] or '0', known[5] or '0'
local own, heard, alive_until, late = stamp_of(node)
-- An earlier process of the node may have left an entry without a stamp.
own = own or tonumber(known[2] or '0')
if not epoch or (epoch == known_epoch and own < tonumber(known_stamp)) then
  epoch, forgot_from, forgot_from_ms = new_epoch, whole(own), known[6] or '0'
  redis.call('HSET', witness, 'epoch', epoch, 'forgot_from', forgot_from, 'forgot_from_ms', forgot_from_ms)
end
local stamp = redis.call('HINCRBY', witness, 'stamp', 1)
-- The entry must not look old before the node's first check-in.
local _, now = clock()
put_stamp(node, stamp, heard, math.max(alive_until, now), late)
if known_since ~= '' and (not since or since < tonumber(known_since)) then
  since = tonumber(known_since)
  redis.call('HSET', witness, 'since', whole(since))
  for _, minute in ipairs(redis.call('ZRANGE', closed, 0, -1)) do
    if tonumber(minute) < since then
      redis.call('ZREM', closed, minute)
    end
  end
end
for i = REST, #ARGV do
  -- Minutes before `since` count as closed without being listed.
  if not (since and tonumber(ARGV[i]) < since) then
    if kind == 'announced' then
      announce(ARGV[i])
    else
      close(ARGV[i], kind == 'empty')
    end
  end
end
return {epoch, stamp, tonumber(forgot_from), tonumber(forgot_from_ms)}

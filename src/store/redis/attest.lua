#!lua flags=allow-oom
-- Takes what a node knows to be closed, and says what Redis itself knows: of one partition.
--
-- KEYS  witness, closed, stamps
-- ARGV  node, epoch and its last stamp that it knows (0: none), an epoch that nobody has, since (empty: unknown),
--       1 if the minutes are only announced, minutes…
-- Gives {epoch, the node's stamp, the last stamp before which Redis forgot nothing (0: it has nothing), when that was in ms}
--
-- An epoch lasts as long as Redis forgets nothing. It ends when a node comes whose own stamp is older than it was,
-- and by the new one all other nodes notice. Stamps are numbers and no times: a clock that is set back must not hide it.
local witness, closed, stamps = KEYS[1], KEYS[2], KEYS[3]
local known = redis.call('HMGET', witness, 'epoch', 'stamp', 'since', 'forgot_from', 'forgot_from_ms', 'clock')
local epoch, since = known[1], tonumber(known[3])
local forgot_from, forgot_from_ms = known[4] or '0', known[5] or '0'
local own, heard, alive_until, late = stamp_of(stamps, ARGV[1])
-- What an earlier process of the node left behind has no stamp of its own.
own = own or tonumber(known[2] or '0')
if not epoch or (epoch == ARGV[2] and own < tonumber(ARGV[3])) then
  epoch, forgot_from, forgot_from_ms = ARGV[4], string.format('%.0f', own), known[6] or '0'
  redis.call('HSET', witness, 'epoch', epoch, 'forgot_from', forgot_from, 'forgot_from_ms', forgot_from_ms)
end
local stamp = redis.call('HINCRBY', witness, 'stamp', 1)
put_stamp(stamps, ARGV[1], stamp, heard, alive_until, late)
if ARGV[5] ~= '' and (not since or since < tonumber(ARGV[5])) then
  since = tonumber(ARGV[5])
  redis.call('HSET', witness, 'since', string.format('%.0f', since))
  for _, minute in ipairs(redis.call('ZRANGE', closed, 0, -1)) do
    if tonumber(minute) < since then
      redis.call('ZREM', closed, minute)
    end
  end
end
for i = 7, #ARGV do
  -- What is before `since` counts as closed without being listed.
  if not (since and tonumber(ARGV[i]) < since) then
    (ARGV[6] == '1' and announce or close)(closed, witness, ARGV[i])
  end
end
return {epoch, stamp, tonumber(forgot_from), tonumber(forgot_from_ms)}

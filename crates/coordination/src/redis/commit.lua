-- Puts a staged list in the place of the one that is read, and its time to live with it.
--
-- KEYS  staged, list, committed, writer
-- ARGV  token ('': none), ms for which it is known, ttl ms, items, ms for which it is known that this was done
-- Gives 1; 0 when a newer writer was there; -1 when the staged list is not whole
if redis.call('EXISTS', KEYS[3]) == 1 then
  -- The answer was lost and the writer asks again.
  return 1
elseif redis.call('LLEN', KEYS[1]) ~= tonumber(ARGV[4]) then
  return -1
elseif not is_newest(KEYS[4], ARGV[1], ARGV[2]) then
  redis.call('UNLINK', KEYS[1])
  return 0
end
redis.call('SET', KEYS[3], '', 'PX', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
-- RENAME would free the old list before it answers.
redis.call('UNLINK', KEYS[2])
redis.call('RENAME', KEYS[1], KEYS[2])
return 1

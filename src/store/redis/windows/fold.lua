#!lua flags=allow-oom
-- Replaces lists of a window by one list with the same users, unless another node has replaced some of them, or is sealing
-- the window. Returns 1 if they were replaced.
if redis.call('EXISTS', cut) == 1 or redis.call('LLEN', base .. 'log:' .. log) ~= tonumber(frames) then
  return 0
end
for _, is_there in ipairs(redis.call('SMISMEMBER', logs, unpack(ARGV, REST))) do
  if is_there == 0 then
    return 0
  end
end
redis.call('PERSIST', base .. 'log:' .. log)
redis.call('SADD', logs, log)
for i = REST, #ARGV do
  redis.call('SREM', logs, ARGV[i])
  redis.call('UNLINK', base .. 'log:' .. ARGV[i])
end
return 1

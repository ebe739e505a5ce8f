-- needs now
-- Give the lease back, if it is still ours, and wake those who stand by.
-- KEYS: leader beats meta
-- ARGS: token wake
-- returns 1 given back | 0 it was not ours
redis.call('ZREM', beats, token)
if redis.call('HGET', leader, 'token') ~= token then
  return 0
end
redis.call('DEL', leader)
if redis.call('EXISTS', meta) == 1 then -- not made anew: that it is gone has to be noticed
  redis.call('HSET', meta, 'ticked', string.format('%.0f', now_ms()))
end
redis.call('PUBLISH', wake, 'vacant')
return 1

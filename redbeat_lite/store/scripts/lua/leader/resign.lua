-- needs now
-- Release the lease if this beat still holds it, and wake the beats that stand by.
-- KEYS: leader beats meta
-- ARGS: token wake
-- returns 1 released | 0 this beat did not hold it
redis.call('ZREM', beats, token)
if redis.call('HGET', leader, 'token') ~= token then
  return 0
end
redis.call('DEL', leader)
if redis.call('EXISTS', meta) == 1 then -- do not create it, because its loss must be noticed
  redis.call('HSET', meta, 'ticked', string.format('%.0f', now))
end
redis.call('PUBLISH', wake, 'vacant')
return 1

-- needs now
-- Give the lease back, if it is still ours, and wake those who stand by.
-- KEYS[1] leader  KEYS[2] beats  KEYS[3] meta
-- ARGV[1] token  ARGV[2] wake channel
-- returns 1 given back | 0 it was not ours
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[3]) == 1 then -- not made anew: that it is gone has to be noticed
  redis.call('HSET', KEYS[3], 'ticked', string.format('%.0f', now_ms()))
end
redis.call('PUBLISH', ARGV[2], 'vacant')
return 1

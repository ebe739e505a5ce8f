-- Give the lease back, if it is still ours, and wake those who stand by.
-- KEYS[1] leader  KEYS[2] beats
-- ARGV[1] token  ARGV[2] wake channel
-- returns 1 given back | 0 it was not ours
redis.pcall('ZREM', KEYS[2], ARGV[1])
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], 'vacant')
return 1

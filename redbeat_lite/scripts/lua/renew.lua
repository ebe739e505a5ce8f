-- Extend the leader's lease, but only for its holder.
-- KEYS[1] leader   ARGV[1] token  ARGV[2] term  ARGV[3] lease_ms
-- returns 1 renewed | 0 lost
local held = redis.call('HMGET', KEYS[1], 'token', 'term')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1

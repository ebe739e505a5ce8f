-- Let a run stand in the line of its entry, behind those that are there, and another one leave it.
-- KEYS[1] line
-- ARGV[1] run id, '': nobody comes  [2] run id that leaves, '': nobody  [3] most that may stand there  [4] ms to keep it
-- returns {1 it stands there | 0 there is no room, the first of the line or ''}
redis.call('LREM', KEYS[1], 0, ARGV[2])
local line = redis.call('LRANGE', KEYS[1], 0, -1)
local joined = 0
for _, each in ipairs(line) do
  joined = each == ARGV[1] and 1 or joined
end
if joined == 0 and #line < tonumber(ARGV[3]) then
  redis.call('RPUSH', KEYS[1], ARGV[1])
  joined = 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {joined, redis.call('LINDEX', KEYS[1], 0) or ''}

-- Let a run stand in the line of its entry, behind those that are there, and another one leave it.
-- KEYS[1] line
-- ARGV[1] run id, '': nobody comes  [2] run id that leaves, '': nobody  [3] most that may stand there  [4] ms to keep it
-- returns {1 it stands there | 0 there is no room, the first of the line or ''}
redis.call('ZREM', KEYS[1], ARGV[2])
local joined = redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0
if joined == 0 and redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[3]) then
  local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or 0
  redis.call('ZADD', KEYS[1], last + 1, ARGV[1])
  joined = 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {joined, redis.call('ZRANGE', KEYS[1], 0, 0)[1] or ''}

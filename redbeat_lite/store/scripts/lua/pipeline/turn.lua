-- Let a run stand in the line of its entry, behind those that are there, and another one leave it. One that runs stands
-- in front of those that wait, and there is always room for it.
-- KEYS[1] line
-- ARGV[1] run id, '': nobody comes  [2] run id that leaves, '': nobody  [3] most that may stand there  [4] ms to keep it
--     [5] 1: it runs
-- returns {1 it stands there | 0 there is no room, the first of the line or ''}
redis.call('ZREM', KEYS[1], ARGV[2])
local joined = redis.call('ZSCORE', KEYS[1], ARGV[1]) and 1 or 0
local runs = ARGV[5] == '1'
if joined == 0 and (runs or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[3])) then
  local beside = runs and 0 or -1
  local place = redis.call('ZRANGE', KEYS[1], beside, beside, 'WITHSCORES')[2] or 0
  redis.call('ZADD', KEYS[1], place + (runs and -1 or 1), ARGV[1])
  joined = 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {joined, redis.call('ZRANGE', KEYS[1], 0, 0)[1] or ''}

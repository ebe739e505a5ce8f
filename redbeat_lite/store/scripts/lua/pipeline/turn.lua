-- Let a run stand in the line of its entry, behind those that are there, and another one leave it. One that runs stands
-- in front of those that wait, and there is always room for it.
-- KEYS: line
-- ARGS: comes leaves most keep_ms is_running
--   comes, leaves: run ids, '': nobody   most: that may stand there   keep_ms: of the line   is_running: 1: who comes runs
-- returns {1 it stands there | 0 there is no room, the first of the line or ''}
redis.call('ZREM', line, leaves)
local joined = redis.call('ZSCORE', line, comes) and 1 or 0
local runs = is_running == '1'
if joined == 0 and (runs or redis.call('ZCARD', line) < tonumber(most)) then
  local beside = runs and 0 or -1
  local place = redis.call('ZRANGE', line, beside, beside, 'WITHSCORES')[2] or 0
  redis.call('ZADD', line, place + (runs and -1 or 1), comes)
  joined = 1
end
redis.call('PEXPIRE', line, keep_ms)
return {joined, redis.call('ZRANGE', line, 0, 0)[1] or ''}

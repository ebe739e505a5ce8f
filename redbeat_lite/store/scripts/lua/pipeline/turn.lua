-- Add a run to the end of the line of its entry, and remove another. A run that runs already goes to
-- the front, and there is always room for it.
-- KEYS: line
-- ARGS: comes leaves most keep_ms is_running
--   comes, leaves: run ids, '': none   most: runs in the line   keep_ms: of the line
--   is_running: 1: the run that comes runs already
-- returns {1 the run is in the line | 0 there is no room, the first run of the line or ''}
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

-- Add a run to the end of the line of its entry, and remove another run from it.
-- KEYS: line
-- ARGS: comes leaves most keep_ms
--   comes, leaves: run ids, '': none   most: most runs in the line   keep_ms: life of the line
-- returns {1 the run is in the line | 0 there is no room, the first run of the line or ''}
redis.call('ZREM', line, leaves)
local joined = redis.call('ZSCORE', line, comes) and 1 or 0
if joined == 0 and redis.call('ZCARD', line) < tonumber(most) then
  local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or 0
  redis.call('ZADD', line, last + 1, comes)
  joined = 1
end
redis.call('PEXPIRE', line, keep_ms)
return {joined, redis.call('ZRANGE', line, 0, 0)[1] or ''}

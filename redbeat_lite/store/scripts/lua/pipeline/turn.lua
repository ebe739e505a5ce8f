-- Add a run to the end of the line of its entry, and remove another run from it.
-- KEYS: line
-- ARGS: add remove most keep_ms
--   add, remove: run ids, '': none   most: most runs in the line   keep_ms: life of the line
-- returns {1 the run is in the line | 0 there is no room, the first run of the line or ''}
redis.call('ZREM', line, remove)
local is_in_line = redis.call('ZSCORE', line, add)
if not is_in_line and redis.call('ZCARD', line) < tonumber(most) then
  local last_place = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or 0
  redis.call('ZADD', line, last_place + 1, add)
  is_in_line = true
end
redis.call('PEXPIRE', line, keep_ms)
return {is_in_line and 1 or 0, redis.call('ZRANGE', line, 0, 0)[1] or ''}

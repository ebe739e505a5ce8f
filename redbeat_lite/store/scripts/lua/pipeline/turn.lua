-- Add a run to the end of the line of its entry, and remove another run from it.
-- KEYS: line
-- ARGS: add remove most keep_ms
--   add, remove: members of the line, '': none   most: most runs in the line   keep_ms: life of the line
-- returns {1 the run is in the line, or without `add` there is room | 0 there is no room, the first
--   member of the line or ''}
redis.call('ZREM', line, remove)
local has_room = redis.call('ZSCORE', line, add) or redis.call('ZCARD', line) < tonumber(most)
if has_room and add ~= '' then
  local last_place = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or 0
  redis.call('ZADD', line, 'NX', last_place + 1, add)
end
redis.call('PEXPIRE', line, keep_ms)
return {has_room and 1 or 0, redis.call('ZRANGE', line, 0, 0)[1] or ''}

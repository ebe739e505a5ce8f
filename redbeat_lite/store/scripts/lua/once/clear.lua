-- needs now change
-- Release a lock, no matter which task holds it.
-- KEYS[1] lock  [2] waiters  [3] index  [4] record of changes
-- [5] the reply of this call, for a minute, so that a second send answers the same and releases no
-- other task's lock
-- ARGV[1] key  [2] change, for the record
-- returns {1 it was held | 0 it was free, 1 a task waits for it | 0 none does}
local held = redis.call('EXISTS', KEYS[5])
if held == 0 then
  held = redis.call('DEL', KEYS[1])
  if held == 1 then
    redis.call('SET', KEYS[5], '1', 'PX', 60000)
    note_change(KEYS[4], '', ARGV[2], nil, {ARGV[1]})
  end
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('ZADD', KEYS[3], now_ms(), ARGV[1])
  return {held, 1}
end
redis.call('ZREM', KEYS[3], ARGV[1])
return {held, 0}

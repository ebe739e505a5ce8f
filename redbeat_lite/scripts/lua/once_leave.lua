-- A task that will not run gives up its place: the lock it holds while queued, or its place among the waiters.
-- KEYS[1] lock  [2] waiters  [3] parked  [4] index   ARGV[1] key  [2] task id
-- returns 1 if somebody may be waiting for the lock now, else 0
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local l = redis.call('HMGET', KEYS[1], 'task', 'state')
-- A lock in state running belongs to a copy that runs: that one gives it back itself.
if l[1] == ARGV[2] and l[2] == 'queued' then
  redis.call('DEL', KEYS[1])
end
if redis.call('ZREM', KEYS[2], ARGV[2]) == 1 then
  redis.call('HDEL', KEYS[3], 'm:' .. ARGV[2], 'a:' .. ARGV[2], 'd:' .. ARGV[2])
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[3])
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('ZADD', KEYS[4], now, ARGV[1])
  return 1
end
redis.call('ZREM', KEYS[4], ARGV[1])
return 0

-- Keep the lock of a task that is known to be queued for another lease.
-- KEYS[1] lock  [2] index   ARGV[1] key  [2] task id
-- returns 1 extended | 0 no longer queued
local l = redis.call('HMGET', KEYS[1], 'task', 'state', 'lease')
if l[1] ~= ARGV[2] or l[2] ~= 'queued' then
  return 0
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local lease = tonumber(l[3])
-- A retry far ahead has a longer time than its lease already.
if redis.call('PTTL', KEYS[1]) < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('ZADD', KEYS[2], now + lease, ARGV[1])
end
return 1

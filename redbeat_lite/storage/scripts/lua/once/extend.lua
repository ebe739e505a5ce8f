-- needs now
-- Keep the locks of tasks that are known to be queued for another lease.
-- KEYS[1] index  then for each task: lock   ARGV for each task: key, task id
-- returns for each task 1 extended | 0 no longer queued
local now = now_ms()
local extended = {}
for n = 1, #ARGV / 2 do
  local lock, key, id = KEYS[1 + n], ARGV[2 * n - 1], ARGV[2 * n]
  local l = redis.call('HMGET', lock, 'task', 'state', 'lease')
  local queued = l[1] == id and l[2] == 'queued'
  local lease = queued and tonumber(l[3])
  -- A retry far ahead has a longer time than its lease already.
  if queued and redis.call('PTTL', lock) < lease then
    redis.call('PEXPIRE', lock, lease)
    redis.call('ZADD', KEYS[1], now + lease, key)
  end
  extended[n] = queued and 1 or 0
end
return extended

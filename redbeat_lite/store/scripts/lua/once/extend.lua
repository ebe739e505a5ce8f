-- needs now
-- Extend the locks of queued tasks by a lease, but not past their latest end. Shorten the locks of
-- lost messages to half a lease at most.
-- KEYS: index locks...
-- ARGS: tasks...
--   tasks: for each lock its key, task id, and 1 queued | 0 lost
local now = now_ms()
for n, lock in ipairs(locks) do
  local key, id, there = tasks[3 * n - 2], tasks[3 * n - 1], tasks[3 * n] == '1'
  local l = redis.call('HMGET', lock, 'task', 'state', 'lease', 'latest')
  local lease = l[1] == id and l[2] == 'queued' and tonumber(l[3])
  if lease and there then
    local left = math.min(lease, tonumber(l[4]) - now)
    -- Never shorten a lock, which expires later if its message lives longer.
    if redis.call('PTTL', lock) < left then
      redis.call('PEXPIRE', lock, left)
    end
    redis.call('ZADD', index, now + lease / 2, key)
  elseif lease and redis.call('PTTL', lock) > lease / 2 then
    -- Leave the key due in the index, because the message may only be on its way to a worker.
    redis.call('PEXPIRE', lock, math.floor(lease / 2))
  end
end

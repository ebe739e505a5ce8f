-- needs now
-- Extend the locks of queued tasks by a lease, but not past their latest end. Shorten the locks of
-- lost messages to half a lease at most.
-- KEYS: index locks...
-- ARGS: tasks...
--   tasks: for each lock its key, task id, and 1 queued | 0 lost
-- Begin with a write that needs no memory. A script that has written may go on if memory is full.
redis.call('ZREM', index, '')
for n, lock in ipairs(locks) do
  local key, id, is_queued = unpack(tasks, 3 * n - 2, 3 * n)
  local owner, state, lease, latest = unpack(redis.call('HMGET', lock, 'task', 'state', 'lease', 'latest'))
  lease = tonumber(lease)
  if owner == id and state == 'queued' and lease then
    local left = redis.call('PTTL', lock)
    if is_queued == '1' then
      local extended = math.min(lease, latest - now)
      -- Never shorten a lock, which expires later if its message lives longer.
      if left < extended then
        redis.call('PEXPIRE', lock, extended)
      end
      redis.call('ZADD', index, now + lease / 2, key)
    elseif left > lease / 2 then
      -- Leave the key due in the index, because the message may only be on its way to a worker.
      redis.call('PEXPIRE', lock, math.floor(lease / 2))
    end
  end
end

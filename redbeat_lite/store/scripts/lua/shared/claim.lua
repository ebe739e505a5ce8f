-- needs fence
-- For scripts that acquire the lock of a task whose message is about to be sent.
local DAY = 86400000 -- ms after which a message without an end counts as lost

-- Acquire a lock for a task. Return false if another task has the lock or waits for it.
--   claim: a table of key, task_id, lease_ms, delay_ms (until the task may run), holder, queue,
--     life_ms (for which its message lives, 0: no end), and yields_ms (after which another task may
--     take the lock if this one is still queued, 0: never)
local function acquire(index, fence, lock, waiters, claim)
  local owner, state = unpack(redis.call('HMGET', lock, 'task', 'state'))
  local first = owner or redis.call('ZRANGE', waiters, 0, 0)[1]
  if first and is_later_round(claim.task_id, first) then
    if state ~= 'queued' then
      -- The stale message of the earlier round has just begun, or waits for the lock. In the worker,
      -- the later round waits until that message is dropped.
      return true
    end
    -- Take the lock over from the stale message, which is queued or waits for its retry.
    redis.call('DEL', lock)
    owner = false
  elseif first and owner ~= claim.task_id then
    redis.call('ZADD', index, 'NX', now, claim.key)
    return false
  end
  -- The lock lives as long as its message. While the message is queued, workers extend the lock,
  -- but not past this latest end.
  local due = now + claim.delay_ms
  local life = math.max(claim.lease_ms, claim.life_ms)
  local latest = due + math.max(life, DAY)
  if tonumber(claim.yields_ms) > 0 then
    latest = now + claim.yields_ms
  end
  local ends = math.min(due + life, latest)
  if not owner then
    redis.call('HSET', lock, 'token', 'queued|' .. claim.task_id, 'task', claim.task_id, 'state', 'queued',
      'since', now, 'latest', latest, 'lease', claim.lease_ms, 'fence', next_fence(fence),
      'holder', claim.holder, 'queue', claim.queue)
  end
  -- After a repeated publish, or before a retry, the lock may last long enough already.
  if redis.call('PTTL', lock) < ends - now then
    redis.call('PEXPIREAT', lock, ends)
    redis.call('ZADD', index, due + claim.lease_ms / 2, claim.key)
  end
  return true
end

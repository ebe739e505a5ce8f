-- needs fence
-- For scripts that acquire the lock of a task whose message is about to be sent.
--   keys: a table of the keys lock, waiters, index and fence
--   claim: a table of key, task_id, lease_ms, delay_ms (until the task may run), holder, queue,
--     life_ms (for which its message lives, 0: no end), and takeover_at (epoch ms from which another
--     task may take the lock if this one is still queued, 0: never)
local DAY = 86400000 -- ms after which a queued message may count as lost

-- Return whether another task has the lock, or a task waits for it. If so, see that the lock sweeper
-- checks the lock.
local function is_taken(keys, claim)
  local owner = redis.call('HGET', keys.lock, 'task')
  local first = owner or redis.call('ZRANGE', keys.waiters, 0, 0)[1]
  if not first or owner == claim.task_id or is_later_round(claim.task_id, first) then
    return false
  end
  redis.call('ZADD', keys.index, 'NX', now, claim.key)
  return true
end

-- Acquire a lock that is not taken. For a later round of a step, the worker may have to acquire it.
local function acquire(keys, claim)
  local owner, state = unpack(redis.call('HMGET', keys.lock, 'task', 'state'))
  local first = owner or redis.call('ZRANGE', keys.waiters, 0, 0)[1]
  if first and is_later_round(claim.task_id, first) then
    if state ~= 'queued' then
      -- The stale message of the earlier round has just begun, or waits for the lock. In the worker,
      -- the later round waits until that message is dropped.
      return
    end
    -- Take the lock over from the stale message, which is queued or waits for its retry.
    redis.call('DEL', keys.lock)
    owner = false
  end
  -- The lock lives as long as its message. While the message is queued, workers extend the lock,
  -- but not past this latest end.
  local due = now + claim.delay_ms
  local life = math.max(claim.lease_ms, claim.life_ms)
  local latest = due + math.max(life, DAY)
  if tonumber(claim.takeover_at) > 0 then
    latest = math.max(claim.takeover_at, now + 1)
  end
  local ends = math.min(due + life, latest)
  if not owner then
    redis.call('HSET', keys.lock, 'token', 'queued|' .. claim.task_id, 'task', claim.task_id, 'state', 'queued',
      'since', now, 'latest', latest, 'lease', claim.lease_ms, 'fence', next_fence(keys.fence),
      'holder', claim.holder, 'queue', claim.queue)
  end
  -- After a repeated publish, or before a retry, the lock may last long enough already. The lock
  -- sweeper checks the lock when half of its lease is over, so that it can extend the lock in time.
  if redis.call('PTTL', keys.lock) < ends - now then
    redis.call('PEXPIREAT', keys.lock, ends)
    redis.call('ZADD', keys.index, due + claim.lease_ms / 2, claim.key)
  end
end

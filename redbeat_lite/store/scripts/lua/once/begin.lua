-- needs fence
-- Decide whether a task runs now. If so, claim its id, and acquire its lock if it has one. A
-- repeated call gets the same reply.
-- KEYS: guard guard_index lock? waiters? parked? index? fence?
-- ARGS: token task_id attempt lease_ms deadline_ms life_ms message
-- ARGS: key on_conflict holder max_waiters expires_ms
--   deadline_ms: 0: none   life_ms: of the guard's record   message: '': not encoded yet
--   lock to fence, key to expires_ms: only for a task with a lock
--   on_conflict: skip | wait | raise | try   max_waiters: 0: no bound   expires_ms: 0: never
-- returns {verdict, text}
--   run, fence      go ahead
--   encode          call again with the message, because it has to be parked
--   parked, place   the message waits for the lock
--   taken, task id  another task has the lock, or too many messages wait. The id is claimed, but
--                   not with try, so that the task can call again
--   old             the deadline is over; the caller releases the lock and the place of the task
--   standby         the message is parked until the copy that runs has ended
--   drop            this attempt has ended, or a later one has begun
local now = now_ms()
local this_attempt, lease, deadline = tonumber(attempt), tonumber(lease_ms), tonumber(deadline_ms)

if deadline > 0 and now > deadline then
  -- The task may have run already, because the record of an earlier copy expires.
  return {'old', ''}
end
local limit = deadline > 0 and deadline or now + life_ms

local g = redis.call('HMGET', guard, 'state', 'attempt', 'token', 'until', 'standby_attempt')
if g[1] then
  local seen = tonumber(g[2])
  if this_attempt < seen or (this_attempt == seen and g[1] == 'done') then
    return {'drop', ''}
  end
  if g[1] == 'running' and g[3] ~= token and tonumber(g[4]) > now then
    if message == '' then
      return {'encode', ''}
    end
    if not g[5] or this_attempt > tonumber(g[5]) then
      redis.call('HSET', guard, 'standby', message, 'standby_attempt', this_attempt)
      redis.call('HDEL', guard, 'tries', 'resend')
    end
    redis.call('ZADD', guard_index, g[4], task_id)
    return {'standby', ''}
  end
end

local function claim_id()
  redis.call('DEL', guard)
  redis.call('ZREM', guard_index, task_id)
  redis.call('HSET', guard, 'state', 'running', 'attempt', this_attempt, 'token', token, 'until', now + lease)
  -- At least two leases, as after a renewal, because the record also holds the standby copy.
  redis.call('PEXPIREAT', guard, math.max(limit, now + 2 * lease))
end

if not lock then
  claim_id()
  return {'run', ''}
end

-- Begin with a write that needs no memory. A script that has written may go on if memory is full.
redis.call('ZREMRANGEBYSCORE', index, '-inf', now - KEPT)
local owner = redis.call('HGET', lock, 'task')
local head = redis.call('ZRANGE', waiters, 0, 0)[1]
if owner ~= task_id and (owner or (head and head ~= task_id)) then
  redis.call('ZADD', index, 'NX', now, key)
  local waits = redis.call('ZSCORE', waiters, task_id)
  local most = tonumber(max_waiters)
  local is_full = most > 0 and not waits and redis.call('ZCARD', waiters) >= most
  if on_conflict ~= 'wait' or is_full then
    -- A refused task has the record of a running one until the caller stores its result. If the
    -- caller dies before, a copy can begin after a lease.
    if on_conflict ~= 'try' then
      claim_id()
    end
    return {'taken', owner or head}
  end
  if message == '' then
    return {'encode', ''}
  end
  if not waits then
    -- Places are fencing numbers, because these always grow.
    redis.call('ZADD', waiters, next_fence(), task_id)
  end
  -- Every waiter expires, because its queue may have no consumer, and others wait behind it.
  local expires = tonumber(expires_ms)
  if expires > 0 then
    limit = math.min(limit, expires)
  end
  redis.call('HSET', parked, 'm:' .. task_id, message, 'a:' .. task_id, this_attempt, 'd:' .. task_id, limit)
  if g[5] and this_attempt >= tonumber(g[5]) then
    -- The standby copy waits for the lock now. In both places, it would be sent twice.
    redis.call('HDEL', guard, 'standby', 'standby_attempt', 'tries', 'resend')
    redis.call('ZREM', guard_index, task_id)
  end
  for _, waiting in ipairs({waiters, parked}) do
    local left = limit - now + KEPT
    if redis.call('PTTL', waiting) < left then
      redis.call('PEXPIRE', waiting, left)
    end
  end
  return {'parked', tostring(redis.call('ZRANK', waiters, task_id))}
end

-- The lock is free, or this task has it: since its publish, for its retry, or from a dead copy.
if head then
  redis.call('ZREM', waiters, task_id)
  redis.call('HDEL', parked, 'm:' .. task_id, 'a:' .. task_id, 'd:' .. task_id, 'woken', 'tries', 'resend')
end
local number = next_fence()
redis.call('DEL', lock)
redis.call('HSET', lock, 'token', token, 'task', task_id, 'state', 'running', 'since', now, 'lease', lease,
  'fence', number, 'holder', holder)
redis.call('PEXPIRE', lock, lease)
redis.call('ZADD', index, now + lease, key)
claim_id()
return {'run', number}

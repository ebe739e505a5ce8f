-- needs fence parked
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
--   drop            this attempt has ended, or a later one has begun, or a later round of the step
--                   has the lock
attempt = tonumber(attempt)
lease_ms = tonumber(lease_ms)
local deadline = tonumber(deadline_ms)
-- Time from which the message is too old to run.
local limit = deadline > 0 and deadline or now + life_ms

-- 1. The deadline. It comes before the guard, because the guard's record expires after the
-- deadline, and a copy that arrives then must not run.
if deadline > 0 and now > deadline then
  return {'old', ''}
end

-- 2. The guard: one copy of the message runs at a time, and none runs after the task is done.
local state, last_attempt, runner, until_ms, standby_attempt =
  unpack(redis.call('HMGET', guard, 'state', 'attempt', 'token', 'until', 'standby_attempt'))
standby_attempt = tonumber(standby_attempt)
if state then
  last_attempt = tonumber(last_attempt)
  if attempt < last_attempt or (attempt == last_attempt and state == 'done') then
    return {'drop', ''}
  end
  if state == 'running' and runner ~= token and tonumber(until_ms) > now then
    if message == '' then
      return {'encode', ''}
    end
    if not standby_attempt or attempt > standby_attempt then
      redis.call('HSET', guard, 'standby', message, 'standby_attempt', attempt)
      redis.call('HDEL', guard, 'tries', 'resend')
    end
    redis.call('ZADD', guard_index, until_ms, task_id)
    return {'standby', ''}
  end
end

local function claim_id()
  redis.call('DEL', guard)
  redis.call('ZREM', guard_index, task_id)
  redis.call('HSET', guard, 'state', 'running', 'attempt', attempt, 'token', token, 'until', now + lease_ms)
  -- At least two leases, as after a renewal, because the record also holds the standby copy.
  redis.call('PEXPIREAT', guard, math.max(limit, now + 2 * lease_ms))
end

if not lock then
  claim_id()
  return {'run', ''}
end

-- 3. The lock: the task that has it goes first, or else the first waiter.
-- Begin with a write that needs no memory. A script that has written may go on if memory is full.
redis.call('ZREMRANGEBYSCORE', index, '-inf', now - INDEX_LIFE)
local head = redis.call('ZRANGE', waiters, 0, 0)[1]
local owner, owner_state = unpack(redis.call('HMGET', lock, 'task', 'state'))
local first = owner or head
if first and is_later_round(first, task_id) then
  return {'drop', ''}
end
local must_wait = on_conflict == 'wait'
if first and is_later_round(task_id, first) then
  -- The message of the earlier round is stale. If its lock is queued, also for a retry, this step
  -- takes it over. Otherwise that message has just begun, and this step waits until it is dropped.
  must_wait = true
  if owner_state == 'queued' then
    first = task_id
  end
end
if first and first ~= task_id then
  redis.call('ZADD', index, 'NX', now, key)
  local place = redis.call('ZSCORE', waiters, task_id)
  max_waiters = tonumber(max_waiters)
  local is_full = max_waiters > 0 and redis.call('ZCARD', waiters) >= max_waiters
  if not must_wait or (is_full and not place) then
    -- A refused task has the record of a running one until the caller stores its result. If the
    -- caller dies before, a copy can begin after a lease.
    if on_conflict ~= 'try' then
      claim_id()
    end
    return {'taken', first}
  end
  if message == '' then
    return {'encode', ''}
  end
  if not place then
    -- Places are fencing numbers, because these always grow.
    redis.call('ZADD', waiters, next_fence(fence), task_id)
  end
  -- Every waiter expires, because its queue may have no consumer, and others wait behind it.
  if tonumber(expires_ms) > 0 then
    limit = math.min(limit, expires_ms)
  end
  redis.call('HSET', parked, 'm:' .. task_id, message, 'a:' .. task_id, attempt, 'd:' .. task_id, limit)
  if standby_attempt and attempt >= standby_attempt then
    -- The standby copy waits for the lock now. In both places, it would be sent twice.
    remove_standby()
  end
  local left = limit - now + INDEX_LIFE
  for _, parking in ipairs({waiters, parked}) do
    if redis.call('PTTL', parking) < left then
      redis.call('PEXPIRE', parking, left)
    end
  end
  return {'parked', tostring(redis.call('ZRANK', waiters, task_id))}
end

-- 4. The lock is free, or this task has it: since its publish, for its retry, or from a dead copy.
if head then
  remove_waiter(waiters, parked, task_id)
  redis.call('HDEL', parked, 'woken', 'tries', 'resend')
end
local number = next_fence(fence)
redis.call('DEL', lock)
redis.call('HSET', lock, 'token', token, 'task', task_id, 'state', 'running', 'since', now, 'lease', lease_ms,
  'fence', number, 'holder', holder)
redis.call('PEXPIRE', lock, lease_ms)
redis.call('ZADD', index, now + lease_ms, key)
claim_id()
return {'run', number}

-- needs fence
-- Acquire the locks of tasks before they are published. A claim that is refused does not affect the others.
-- KEYS: index fence places...
-- ARGS: planned_ms claims...
--   planned_ms: when the leader has planned the messages, or 0: they are about to be sent, so remove
--     the marks
--   places: for each claim its lock and waiters
--   claims: at most 1,000, for each: key, task id, lease_ms, ms until it may run, holder, queue,
--     ms for which its message lives (0: no end),
--     ms after which another task may take the lock if this one is still queued (0: never)
-- returns for each claim 1 acquired, now or before by the same task id, or the worker acquires it
--     | 0 another task has the lock or waits for it
local DAY = 86400000 -- ms after which a message without an end counts as lost
-- Begin with a write that needs no memory. A script that has written may go on if memory is full.
redis.call('ZREMRANGEBYSCORE', index, '-inf', now - INDEX_LIFE)
local replies = {}
for n = 1, #places / 2 do
  local lock, waiters = unpack(places, 2 * n - 1, 2 * n)
  local key, id, lease, delay_ms, holder, queue, life_ms, yields_ms = unpack(claims, 8 * n - 7, 8 * n)
  local due = now + delay_ms
  -- The lock lives as long as its message. While the message is queued, workers extend the lock,
  -- but not past this latest end.
  local life = math.max(lease, life_ms)
  local latest = due + math.max(life, DAY)
  if tonumber(yields_ms) > 0 then
    latest = now + yields_ms
  end
  local ends = math.min(due + life, latest)
  local owner, state, unsent = unpack(redis.call('HMGET', lock, 'task', 'state', 'unsent'))
  -- A leader plans a batch only when the batch before is over. By then, each message that was sent
  -- has lost its mark `unsent`. So a beat that died or got no reply has left the mark of an earlier plan.
  local is_left_over = unsent and tonumber(planned_ms) > tonumber(unsent)
  if is_left_over and owner ~= id then
    redis.call('DEL', lock)
    redis.call('ZADD', index, now, key)
    owner, state = false, false
  end
  local first = owner or redis.call('ZRANGE', waiters, 0, 0)[1]
  local is_started_again = first and is_later_round(id, first)
  local is_taken = first and owner ~= id
  if is_started_again and state ~= 'queued' then
    -- The stale message of the earlier round has just begun, or waits for the lock. In the worker,
    -- the later round waits until that message is dropped.
    replies[n] = 1
  elseif is_taken and not is_started_again then
    redis.call('ZADD', index, 'NX', now, key)
    replies[n] = 0
  else
    if is_started_again then
      -- Take the lock over from the stale message, which is queued or waits for its retry.
      redis.call('DEL', lock)
      owner = false
    end
    if not owner then
      redis.call('HSET', lock, 'token', 'queued|' .. id, 'task', id, 'state', 'queued', 'since', now,
        'latest', latest, 'lease', lease, 'fence', next_fence(), 'holder', holder, 'queue', queue)
    end
    if planned_ms == '0' then
      redis.call('HDEL', lock, 'unsent')
    elseif is_left_over or not owner then
      redis.call('HSET', lock, 'unsent', planned_ms)
    end
    -- After a repeated publish, or before a retry, the lock may last long enough already.
    if redis.call('PTTL', lock) < ends - now then
      redis.call('PEXPIREAT', lock, ends)
      redis.call('ZADD', index, due + lease / 2, key)
    end
    replies[n] = 1
  end
end
return replies

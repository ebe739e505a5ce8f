-- needs now
-- Release the lock and end the guard's record of a task, but only for their holder. A second send
-- does nothing.
-- KEYS: guard guard_index lock? waiters? index?
-- ARGS: token task_id how deadline_ms life_ms key hold_ms attempt lease_ms
--   how: done: no copy may run again | again: a copy may run | lock: release the lock alone, because
--     the run goes on   deadline_ms: 0: none
--   life_ms: of the guard's record
--   hold_ms: for which the lock is kept for this task's retry, its lease included, 0: release it
--   lock to index, key, hold_ms, attempt, lease_ms: of a task with a lock
-- returns {1 a standby copy is to be published, else 0; 1 the lock was ours, else 0;
--     1 a task waits for it, else 0}
local DAY = 86400000 -- ms after which the message of a retry counts as lost
local now = now_ms()
local standby = 0
local g = redis.call('HMGET', guard, 'token', 'state', 'attempt', 'standby', 'standby_attempt')
if how ~= 'lock' and g[1] == token and g[2] == 'running' then
  if how == 'done' then
    redis.call('DEL', guard)
    redis.call('HSET', guard, 'state', 'done', 'attempt', g[3])
    local deadline = tonumber(deadline_ms)
    redis.call('PEXPIREAT', guard, deadline > now and deadline + 1000 or now + tonumber(life_ms))
    if g[4] then
      redis.call('ZREM', guard_index, task_id)
    end
    if g[4] and tonumber(g[5]) > tonumber(g[3]) then
      -- The next attempt arrived before this one had ended. A copy of this attempt is dropped
      -- instead.
      redis.call('HSET', guard, 'standby', g[4], 'standby_attempt', g[5])
      standby = 1
    end
  else
    redis.call('HSET', guard, 'state', 'dead')
    standby = g[4] and 1 or 0
  end
  if standby == 1 then
    redis.call('ZADD', guard_index, now, task_id)
  end
end
if not lock or redis.call('HGET', lock, 'token') ~= token then
  return {standby, 0, 0}
end

local hold = tonumber(hold_ms)
if hold > 0 then
  local lease = tonumber(lease_ms)
  local due = now + hold - lease
  redis.call('HSET', lock, 'token', 'queued|' .. task_id, 'state', 'queued', 'latest', due + DAY, 'ended', attempt)
  redis.call('PEXPIRE', lock, hold)
  redis.call('ZADD', index, due + lease / 2, key)
  return {standby, 1, 0}
end
redis.call('DEL', lock)
if redis.call('EXISTS', waiters) == 1 then
  -- Due at once, so that the lock sweeper wakes the next waiter if the caller dies before it does.
  redis.call('ZADD', index, now, key)
  return {standby, 1, 1}
end
redis.call('ZREM', index, key)
return {standby, 1, 0}

-- needs now parked
-- Release the lock and end the guard's record of a task, but only for their holder. A repeated call
-- does nothing.
-- KEYS: guard guard_index lock? waiters? index?
-- ARGS: token task_id how deadline_ms life_ms key hold_ms attempt lease_ms
--   how: done: no copy may run any more | dead: a copy may run | lock: release only the lock
--   deadline_ms: 0: none   life_ms: of the guard's record
--   hold_ms: time to keep the lock for this task's retry, its lease included, 0: release it
--   lock to index, key, hold_ms, attempt, lease_ms: only for a task with a lock
-- returns {1 a standby copy has to be published | 0, 1 the lock was released and a task waits | 0}
local DAY = 86400000 -- ms after which the message of a retry counts as lost
local publish_standby = 0
local runner, state, last_attempt, standby_attempt =
  unpack(redis.call('HMGET', guard, 'token', 'state', 'attempt', 'standby_attempt'))
if how ~= 'lock' and runner == token and state == 'running' then
  redis.call('HDEL', guard, 'token', 'until', 'tries', 'resend')
  redis.call('HSET', guard, 'state', how)
  if how == 'done' then
    local deadline = tonumber(deadline_ms)
    redis.call('PEXPIREAT', guard, deadline > now and deadline + 1000 or now + life_ms)
  end
  if standby_attempt and (how == 'dead' or tonumber(standby_attempt) > tonumber(last_attempt)) then
    -- After a done attempt, only the standby copy of a later attempt may run.
    publish_standby = 1
    redis.call('ZADD', guard_index, now, task_id)
  elseif standby_attempt then
    remove_standby()
  end
end
if not lock or redis.call('HGET', lock, 'token') ~= token then
  return {publish_standby, 0}
end

if tonumber(hold_ms) > 0 then
  local due = now + hold_ms - lease_ms -- of the retry
  redis.call('HSET', lock, 'token', 'queued|' .. task_id, 'state', 'queued', 'latest', due + DAY, 'ended', attempt)
  redis.call('PEXPIRE', lock, hold_ms)
  redis.call('ZADD', index, due + lease_ms / 2, key)
  return {publish_standby, 0}
end
redis.call('DEL', lock)
return {publish_standby, index_free_lock(key, waiters)}

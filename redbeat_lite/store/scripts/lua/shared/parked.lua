-- For scripts that handle parked messages: those of tasks that wait for a lock, and the standby of a
-- task, which is a parked copy of the message of a task that runs.
local HOUR = 3600000 -- longest pause in ms: a queue without a consumer gets one copy an hour

-- Return when a message is published again if its task does not start: after resend_ms, which
-- doubles with each publish before this one.
local function next_publish(earlier_publishes)
  return now + math.min(resend_ms * 2 ^ math.min(earlier_publishes, 20), HOUR)
end

local function remove_waiter(waiters, parked, id)
  redis.call('ZREM', waiters, id)
  redis.call('HDEL', parked, 'm:' .. id, 'a:' .. id, 'd:' .. id)
end

local function remove_standby()
  redis.call('HDEL', guard, 'standby', 'standby_attempt', 'tries', 'resend')
  redis.call('ZREM', guard_index, task_id)
end

-- Let the lock sweeper check a free lock at once if a task waits for it, in case the caller dies
-- before it wakes that task. Return 1 if a task waits, else 0.
local function index_free_lock(key, waiters)
  if redis.call('EXISTS', waiters) == 0 then
    redis.call('ZREM', index, key)
    return 0
  end
  redis.call('ZADD', index, now, key)
  return 1
end

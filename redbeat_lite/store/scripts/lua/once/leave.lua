-- needs now parked
-- Release the lock, or the place among the waiters, of a queued task that will not run. The lock and
-- the place of a later attempt stay.
-- KEYS: index lock waiters parked
-- ARGS: key task_id attempt
-- returns 1 if the lock is free now and another task waits for it, else 0
attempt = tonumber(attempt)
local owner, state, ended_attempt = unpack(redis.call('HMGET', lock, 'task', 'state', 'ended'))
local is_kept_for_retry = ended_attempt and tonumber(ended_attempt) >= attempt
-- A copy that runs releases its lock itself.
if owner == task_id and state == 'queued' and not is_kept_for_retry then
  redis.call('DEL', lock)
end
if tonumber(redis.call('HGET', parked, 'a:' .. task_id) or '0') <= attempt then
  remove_waiter(waiters, parked, task_id)
end
if redis.call('EXISTS', waiters) == 0 then
  redis.call('DEL', parked)
end
local is_free = redis.call('EXISTS', lock) == 0
return is_free and index_free_lock(key, waiters) or 0

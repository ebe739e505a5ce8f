-- needs now parked
-- Release the locks, and the places among the waiters, of queued tasks that will not run. The lock
-- and the place of a later attempt stay.
-- KEYS: index places...
-- ARGS: planned_ms tasks...
--   planned_ms: release only locks with this mark of an unsent message, 0: release all
--   places: for each task its lock, waiters and parked messages
--   tasks: for each its key, task id and attempt
-- returns for each task 1 if its lock is free now and another task waits for it, else 0
local replies = {}
for n = 1, #tasks / 3 do
  local lock, waiters, parked = unpack(places, 3 * n - 2, 3 * n)
  local key, id, attempt = unpack(tasks, 3 * n - 2, 3 * n)
  attempt = tonumber(attempt)
  local owner, state, ended_attempt, unsent = unpack(redis.call('HMGET', lock, 'task', 'state', 'ended', 'unsent'))
  local is_kept_for_retry = ended_attempt and tonumber(ended_attempt) >= attempt
  local has_mark = planned_ms == '0' or unsent == planned_ms
  -- A copy that runs releases its lock itself.
  if owner == id and state == 'queued' and has_mark and not is_kept_for_retry then
    redis.call('DEL', lock)
  end
  if tonumber(redis.call('HGET', parked, 'a:' .. id) or '0') <= attempt then
    remove_waiter(waiters, parked, id)
  end
  if redis.call('EXISTS', waiters) == 0 then
    redis.call('DEL', parked)
  end
  local is_free = redis.call('EXISTS', lock) == 0
  replies[n] = is_free and index_free_lock(key, waiters) or 0
end
return replies

-- needs now
-- Release the locks, and the places among the waiters, of queued tasks that will not run. The lock
-- and the place of a later attempt stay.
-- KEYS: index places...
-- ARGS: tasks...
--   places: for each task its lock, waiters and parked messages
--   tasks: for each its key, task id and attempt
-- returns for each task 1 if its lock is free now and another task waits for it, else 0
local now = now_ms()
local waited = {}
for n = 1, #tasks / 3 do
  local lock, waiters, parked = places[3 * n - 2], places[3 * n - 1], places[3 * n]
  local key, id, attempt = tasks[3 * n - 2], tasks[3 * n - 1], tonumber(tasks[3 * n])
  local l = redis.call('HMGET', lock, 'task', 'state', 'ended')
  -- A copy that runs releases its lock itself. If this attempt or a later one has ended, the lock
  -- is kept for a retry.
  if l[1] == id and l[2] == 'queued' and not (l[3] and tonumber(l[3]) >= attempt) then
    redis.call('DEL', lock)
  end
  if tonumber(redis.call('HGET', parked, 'a:' .. id) or '0') <= attempt then
    redis.call('ZREM', waiters, id)
    redis.call('HDEL', parked, 'm:' .. id, 'a:' .. id, 'd:' .. id)
  end
  local waiting = redis.call('EXISTS', waiters) == 1
  if not waiting then
    redis.call('DEL', parked)
  end
  waited[n] = 0
  if redis.call('EXISTS', lock) == 0 then
    if waiting then
      redis.call('ZADD', index, now, key)
      waited[n] = 1
    else
      redis.call('ZREM', index, key)
    end
  end
end
return waited

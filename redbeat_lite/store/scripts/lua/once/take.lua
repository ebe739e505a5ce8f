-- needs claim
-- Acquire the lock of a task before it is published.
-- KEYS: index fence lock waiters
-- ARGS: key task_id lease_ms delay_ms holder queue life_ms takeover_at
--   for the last six, see claim.lua
-- returns 1 acquired, now or before by the same task id, or the worker acquires it
--     | 0 another task has the lock or waits for it
-- Begin with a write that needs no memory. A script that has written may go on if memory is full.
redis.call('ZREMRANGEBYSCORE', index, '-inf', now - INDEX_LIFE)
local keys = {lock = lock, waiters = waiters, index = index, fence = fence}
local claim = {key = key, task_id = task_id, lease_ms = lease_ms, delay_ms = delay_ms, holder = holder,
  queue = queue, life_ms = life_ms, takeover_at = takeover_at}
if is_taken(keys, claim) then
  return 0
end
acquire(keys, claim)
return 1

-- needs claim
-- Say which locks other tasks have or wait for. Acquire nothing.
-- KEYS: index places...
-- ARGS: claims...
--   places: for each claim its lock and waiters
--   claims: for each its key and task id
-- returns for each claim 1 another task has the lock or waits for it, else 0
local replies = {}
for n = 1, #places / 2 do
  local lock, waiters = unpack(places, 2 * n - 1, 2 * n)
  local key, task_id = unpack(claims, 2 * n - 1, 2 * n)
  local keys = {lock = lock, waiters = waiters, index = index}
  replies[n] = is_taken(keys, {key = key, task_id = task_id}) and 1 or 0
end
return replies

-- needs claim
-- Say which locks other tasks have or wait for. Acquire nothing.
-- KEYS: index places...
-- ARGS: claims...
--   places: for each claim its lock and waiters
--   claims: for each its key and task id
-- returns for each claim 1 another task has the lock or waits for it, or an earlier claim is for the
--     same lock; else 0
local replies, claimed = {}, {}
for n = 1, #places / 2 do
  local lock, waiters = unpack(places, 2 * n - 1, 2 * n)
  local key, task_id = unpack(claims, 2 * n - 1, 2 * n)
  local keys = {lock = lock, waiters = waiters, index = index}
  local is_free = not claimed[key] and not is_taken(keys, {key = key, task_id = task_id})
  replies[n] = is_free and 0 or 1
  claimed[key] = true
end
return replies

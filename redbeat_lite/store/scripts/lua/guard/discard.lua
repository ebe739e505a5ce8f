-- needs now parked
-- End a task whose message was discarded, was revoked or has expired, and remove its standby. A
-- copy that runs is not stopped, and the standby of a later attempt stays.
-- KEYS: guard guard_index
-- ARGS: task_id attempt
attempt = tonumber(attempt)
local state, last_attempt, until_ms, standby_attempt =
  unpack(redis.call('HMGET', guard, 'state', 'attempt', 'until', 'standby_attempt'))
local is_alive = state == 'running' and tonumber(until_ms) > now
if not state or is_alive or attempt < tonumber(last_attempt) then
  return
end
redis.call('HSET', guard, 'state', 'done', 'attempt', attempt)
redis.call('HDEL', guard, 'token', 'until')
if standby_attempt and tonumber(standby_attempt) <= attempt then
  remove_standby()
end

-- needs now parked
-- Return the standby of a task once the running copy has ended or died. Return it again if it did
-- not start.
-- KEYS: guard guard_index
-- ARGS: task_id resend_ms
--   resend_ms: ms until the standby is published again; doubles each time
-- returns the message to publish, or nothing
local state, until_ms, standby, tries, resend =
  unpack(redis.call('HMGET', guard, 'state', 'until', 'standby', 'tries', 'resend'))
if not standby then
  redis.call('ZREM', guard_index, task_id)
  return false
end
local lease_ends = state == 'running' and tonumber(until_ms) or 0
local not_before = math.max(lease_ends, tonumber(resend or '0'))
if not_before > now then
  redis.call('ZADD', guard_index, not_before, task_id)
  return false
end
tries = tonumber(tries or '0')
local again = next_publish(tries)
redis.call('HSET', guard, 'tries', tries + 1, 'resend', again)
redis.call('ZADD', guard_index, again, task_id)
return standby

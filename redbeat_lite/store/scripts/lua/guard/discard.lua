-- needs now
-- Remove the parked copy of a message that was discarded, was revoked or has expired. A copy that
-- runs is not stopped, and the parked copy of a later attempt stays.
-- KEYS: guard guard_index
-- ARGS: id attempt
local g = redis.call('HMGET', guard, 'state', 'attempt', 'until', 'standby_attempt')
local number = tonumber(attempt)
local is_alive = g[1] == 'running' and tonumber(g[3]) > now_ms()
if not g[1] or number < tonumber(g[2]) or is_alive then
  return
end
redis.call('HSET', guard, 'state', 'done', 'attempt', number)
redis.call('HDEL', guard, 'token', 'until')
if g[4] and tonumber(g[4]) <= number then
  redis.call('HDEL', guard, 'standby', 'standby_attempt', 'tries', 'resend')
  redis.call('ZREM', guard_index, id)
end

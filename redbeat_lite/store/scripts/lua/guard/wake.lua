-- needs now
-- Return the parked copy of a task once the running copy has ended or died. Return it again if it
-- did not start.
-- KEYS: guard guard_index
-- ARGS: id resend_ms
--   resend_ms: ms until the copy is sent again; doubles each time
-- returns the message to publish, or nothing
local HOUR = 3600000 -- longest such pause: a queue without a consumer gets one copy an hour
local now = now_ms()
local g = redis.call('HMGET', guard, 'state', 'until', 'standby', 'tries', 'resend')
if not g[3] then
  redis.call('ZREM', guard_index, id)
  return false
end
local again = math.max(g[1] == 'running' and tonumber(g[2]) or 0, tonumber(g[5] or '0'))
if again > now then
  redis.call('ZADD', guard_index, again, id)
  return false
end
local tries = tonumber(g[4] or '0')
local resend = now + math.min(resend_ms * 2 ^ math.min(tries, 20), HOUR)
redis.call('HSET', guard, 'tries', tries + 1, 'resend', resend)
redis.call('ZADD', guard_index, resend, id)
return g[3]

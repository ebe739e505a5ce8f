-- needs now
-- Return the first waiter of a free lock. Return it again if it did not start in time. A waiter
-- that is too old keeps its place until the caller removes it.
-- KEYS: lock waiters parked index
-- ARGS: key resend_ms
--   resend_ms: ms until a waiter that did not start is woken again; doubles each time
-- returns {message, 0: in time | 1: too old}, or nothing
local HOUR = 3600000 -- longest such pause: a queue without a consumer gets one copy an hour
local now = now_ms()
if redis.call('EXISTS', lock) == 1 then
  return false -- The task that has acquired the lock has put its key into the index.
end
local head = redis.call('ZRANGE', waiters, 0, 0)[1]
if not head then
  redis.call('DEL', parked)
  redis.call('ZREM', index, key)
  return false
end
local w = redis.call('HMGET', parked, 'woken', 'tries', 'resend', 'm:' .. head, 'd:' .. head)
local tries = 1
if w[1] == head then
  if tonumber(w[3]) > now then
    redis.call('ZADD', index, w[3], key)
    return false
  end
  tries = tonumber(w[2]) + 1
end
local message, limit = w[4], tonumber(w[5] or '')
if not message then
  -- The message was evicted or deleted by hand, so the task cannot run.
  redis.call('ZREM', waiters, head)
  redis.call('HDEL', parked, 'a:' .. head, 'd:' .. head)
  redis.call('ZADD', index, now, key)
  return false
end
local resend = now + math.min(resend_ms * 2 ^ math.min(tries - 1, 20), HOUR)
if now <= limit then
  -- Come back as soon as the waiter is too old, but give it time to start after this wake-up.
  resend = math.min(resend, math.max(limit + 1, now + resend_ms))
end
redis.call('HSET', parked, 'woken', head, 'tries', tries, 'resend', resend)
redis.call('ZADD', index, resend, key)
return {message, now > limit and 1 or 0}

-- needs now parked
-- Return the first waiter of a free lock. Return it again if it did not start in time. A waiter
-- that is too old keeps its place until the caller removes it.
-- KEYS: lock waiters parked index
-- ARGS: key resend_ms
--   resend_ms: ms until a waiter that did not start is woken again; doubles each time
-- returns {message, 0: in time | 1: too old}, or nothing
if redis.call('EXISTS', lock) == 1 then
  return false -- The task that has acquired the lock has put its key into the index.
end
local head = redis.call('ZRANGE', waiters, 0, 0)[1]
if not head then
  redis.call('DEL', parked)
  redis.call('ZREM', index, key)
  return false
end
local woken, tries, resend, message, limit =
  unpack(redis.call('HMGET', parked, 'woken', 'tries', 'resend', 'm:' .. head, 'd:' .. head))
if woken ~= head then
  tries = 0 -- The stored number is of an earlier waiter.
elseif tonumber(resend) > now then
  redis.call('ZADD', index, resend, key)
  return false
end
if not message then
  -- The message was evicted or deleted by hand, so the task cannot run.
  remove_waiter(waiters, parked, head)
  redis.call('ZADD', index, now, key)
  return false
end
limit = tonumber(limit)
local again = next_publish(tonumber(tries))
if now <= limit then
  -- Come back as soon as the waiter is too old, but give it time to start after this wake-up.
  again = math.min(again, math.max(limit + 1, now + resend_ms))
end
-- Begin with a write that needs no memory. A script that has written may go on if memory is full.
redis.call('HDEL', parked, '')
redis.call('HSET', parked, 'woken', head, 'tries', tries + 1, 'resend', again)
redis.call('ZADD', index, again, key)
return {message, now > limit and 1 or 0}

-- Whose turn is it? Names the first waiter of a free lock, and again if it did not start in time.
-- KEYS[1] lock  [2] waiters  [3] parked  [4] index
-- ARGV[1] key  [2] ms until a waiter that was woken and did not start is woken again; doubles each time  [3] at most
-- returns the message to publish, or nothing
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local key = ARGV[1]
local left = redis.call('PTTL', KEYS[1])
if left > 0 then
  redis.call('ZADD', KEYS[4], now + left, key)
  return false
end
local head = redis.call('ZRANGE', KEYS[2], 0, 0)[1]
if not head then
  redis.call('DEL', KEYS[3])
  redis.call('ZREM', KEYS[4], key)
  return false
end
local w = redis.call('HMGET', KEYS[3], 'woken', 'tries', 'resend')
local tries = 1
if w[1] == head then
  if tonumber(w[3]) > now then
    redis.call('ZADD', KEYS[4], w[3], key)
    return false
  end
  tries = tonumber(w[2]) + 1
end
local message = redis.call('HGET', KEYS[3], 'm:' .. head)
if not message then
  -- Evicted or cleared by hand. Without its message it cannot run; the next one is looked at in the next round.
  redis.call('ZREM', KEYS[2], head)
  redis.call('HDEL', KEYS[3], 'a:' .. head)
  redis.call('ZADD', KEYS[4], now, key)
  return false
end
local resend = now + math.min(tonumber(ARGV[2]) * 2 ^ math.min(tries - 1, 20), tonumber(ARGV[3]))
redis.call('HSET', KEYS[3], 'woken', head, 'tries', tries, 'resend', string.format('%.0f', resend))
redis.call('ZADD', KEYS[4], resend, key)
return message

-- needs now
-- Return the parked copy of a task once the copy that ran has ended or died, and return it again if
-- it did not start.
-- KEYS[1] guard  [2] guard index   ARGV[1] task id
--     [2] ms until it is sent again; doubles each time  [3] at most
-- returns the message to publish, or nothing
local now = now_ms()
local g = redis.call('HMGET', KEYS[1], 'state', 'until', 'standby', 'tries', 'resend')
if not g[3] then
  redis.call('ZREM', KEYS[2], ARGV[1])
  return false
end
local again = math.max(g[1] == 'running' and tonumber(g[2]) or 0, tonumber(g[5] or '0'))
if again > now then
  redis.call('ZADD', KEYS[2], again, ARGV[1])
  return false
end
local tries = tonumber(g[4] or '0')
local resend = now + math.min(tonumber(ARGV[2]) * 2 ^ math.min(tries, 20), tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'tries', tries + 1, 'resend', string.format('%.0f', resend))
redis.call('ZADD', KEYS[2], resend, ARGV[1])
return g[3]

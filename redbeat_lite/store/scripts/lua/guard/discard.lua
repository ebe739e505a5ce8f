-- needs now
-- Drop the parked copy of a message that was discarded, was revoked or has expired. A copy that
-- runs goes on, and the parked copy of a later attempt stays.
-- KEYS[1] guard  [2] guard index   ARGV[1] task id  [2] attempt
local g = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'until', 'standby_attempt')
local attempt = tonumber(ARGV[2])
if not g[1] or attempt < tonumber(g[2]) then
  return
end
if g[1] == 'running' and tonumber(g[3]) > now_ms() then
  return
end
redis.call('HSET', KEYS[1], 'state', 'done', 'attempt', attempt)
redis.call('HDEL', KEYS[1], 'token', 'until', 'verdict', 'by')
if g[4] and tonumber(g[4]) <= attempt then
  redis.call('HDEL', KEYS[1], 'standby', 'standby_attempt', 'tries', 'resend')
  redis.call('ZREM', KEYS[2], ARGV[1])
end

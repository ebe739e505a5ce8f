-- needs now
-- A step that ran waits for a message again: its retry, or the same one after a requeue.
-- KEYS[1] run  [2] steps
-- ARGV[1] step  [2] round  [3] token  [4] attempt to come  [5] ms until the sweeper publishes it if it has not begun
--     [6] how often it was published
-- returns 1 it waits | 0 another copy's
local step = ARGV[1]
local s = redis.call('HMGET', KEYS[2], step .. ':state', step .. ':round', step .. ':token')
if s[1] ~= 'RUNNING' or s[2] ~= ARGV[2] or s[3] ~= ARGV[3] then
  return 0
end
local due = now_ms() + tonumber(ARGV[5])
redis.call('HSET', KEYS[2], step .. ':state', 'WAITING', step .. ':attempt', ARGV[4], step .. ':tries', ARGV[6],
  step .. ':due', string.format('%.0f', due))
redis.call('HDEL', KEYS[2], step .. ':suspect')
return 1

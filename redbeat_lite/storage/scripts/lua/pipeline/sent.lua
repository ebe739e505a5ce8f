-- needs now
-- Take what was published out of the outbox, and note when it is to be published again if it does not begin.
-- KEYS[1] run  [2] steps  [3] outbox
-- ARGV[1] resend_ms, doubles each time  [2] at most  then at most 1,000 pairs: step, round.attempt as it was published
-- returns how many were taken out
local now = now_ms()
local taken = 0
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' then
  return 0
end
for a = 3, #ARGV, 2 do
  local step = ARGV[a]
  if redis.call('HGET', KEYS[3], step) == ARGV[a + 1] then
    redis.call('HDEL', KEYS[3], step)
    taken = taken + 1
    local state = redis.call('HGET', KEYS[2], step .. ':state')
    if not state or state == 'WAITING' then
      local tries = tonumber(redis.call('HGET', KEYS[2], step .. ':tries') or '0')
      local due = now + math.min(tonumber(ARGV[1]) * 2 ^ math.min(tries, 20), tonumber(ARGV[2]))
      redis.call('HSET', KEYS[2], step .. ':tries', tries + 1, step .. ':due', string.format('%.0f', due))
    end
  end
end
-- With the first message of a run this hash comes into being.
redis.call('PEXPIRE', KEYS[2], redis.call('HGET', KEYS[1], 'keep'))
return taken

-- needs now step
-- Take what was published out of the outbox, and note when it is to be published again if it does not begin.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] resend_ms, doubles each time  [2] at most  then at most 1,000 pairs: step, round.attempt as it was published
local now = now_ms()
if redis.call('HGET', KEYS[1], 'state') ~= 'RUNNING' then
  return
end
for a = 3, #ARGV, 2 do
  local step = ARGV[a]
  if redis.call('HGET', KEYS[4], step) == ARGV[a + 1] then
    redis.call('HDEL', KEYS[4], step)
    local s = step_at(KEYS[2], step)
    if s.state == 'WAITING' then
      s.due = now + math.min(tonumber(ARGV[1]) * 2 ^ math.min(s.tries, 20), tonumber(ARGV[2]))
      s.tries = s.tries + 1
      put_step(KEYS[2], step, s)
    end
  end
end
-- With the first message of a run this hash comes into being.
redis.call('PEXPIRE', KEYS[2], redis.call('HGET', KEYS[1], 'keep'))

-- needs now step
-- Take published steps out of the outbox, and note when each is published again if it does not begin.
-- KEYS: run steps outbox
-- ARGS: resend_ms resend_max_ms published...
--   resend_ms: doubles each time, up to resend_max_ms
--   published: at most 1,000 pairs: step, round.attempt as it was published
local now = now_ms()
if redis.call('HGET', run, 'state') ~= 'RUNNING' then
  return
end
for n = 1, #published, 2 do
  local step = published[n]
  if redis.call('HGET', outbox, step) == published[n + 1] then
    redis.call('HDEL', outbox, step)
    local s = step_at(step)
    if s.state == 'WAITING' then
      s.due = now + math.min(tonumber(resend_ms) * 2 ^ math.min(s.tries, 20), tonumber(resend_max_ms))
      s.tries = s.tries + 1
      put_step(step, s)
    end
  end
end
-- The first message of a run creates this hash.
redis.call('PEXPIRE', steps, redis.call('HGET', run, 'keep'))

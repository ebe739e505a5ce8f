-- needs now step
-- Note that a step is published, and when it is published again if no worker begins it.
-- KEYS: run steps
-- ARGS: step round attempt resend_ms resend_max_ms
--   resend_ms: doubles each time, up to resend_max_ms
local s = step_at(step)
if redis.call('HGET', run, 'state') ~= 'RUNNING' or s.state ~= 'WAITING' or s.round ~= tonumber(round)
  or s.attempt ~= tonumber(attempt) then
  return
end
s.due = now_ms() + math.min(tonumber(resend_ms) * 2 ^ math.min(s.tries, 20), tonumber(resend_max_ms))
s.tries = s.tries + 1
put_step(step, s)

-- needs now step
-- Set a running step back to waiting: for its retry, or for the same message after a requeue.
-- KEYS: steps
-- ARGS: step round token attempt delay_ms tries
--   attempt: the next one   delay_ms: until the sweeper publishes it if it has not begun
--   tries: how often it was published
-- returns 1 the step waits | 0 another copy has it
local s = step_at(step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(round) or s.token ~= token then
  return 0
end
s.state, s.attempt, s.tries, s.suspect = 'WAITING', tonumber(attempt), tonumber(tries), nil
s.due = now_ms() + tonumber(delay_ms)
put_step(step, s)
return 1

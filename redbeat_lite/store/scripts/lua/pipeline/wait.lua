-- needs now step
-- A step that ran waits for a message again: its retry, or the same one after a requeue.
-- KEYS: steps
-- ARGS: step round token attempt delay_ms tries
--   attempt: to come   delay_ms: until the sweeper publishes it if it has not begun
--   tries: how often it was published
-- returns 1 it waits | 0 another copy's
local s = step_at(step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(round) or s.token ~= token then
  return 0
end
s.state, s.attempt, s.tries, s.suspect = 'WAITING', tonumber(attempt), tonumber(tries), nil
s.due = now_ms() + tonumber(delay_ms)
put_step(step, s)
return 1

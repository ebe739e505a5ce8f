-- needs now step
-- A step that ran waits for a message again: its retry, or the same one after a requeue.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] step  [2] round  [3] token  [4] attempt to come  [5] ms until the sweeper publishes it if it has not begun
--     [6] how often it was published
-- returns 1 it waits | 0 another copy's
local step = ARGV[1]
local s = step_at(KEYS[2], step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(ARGV[2]) or s.token ~= ARGV[3] then
  return 0
end
s.state, s.attempt, s.tries, s.suspect = 'WAITING', tonumber(ARGV[4]), tonumber(ARGV[6]), nil
s.due = now_ms() + tonumber(ARGV[5])
put_step(KEYS[2], step, s)
return 1

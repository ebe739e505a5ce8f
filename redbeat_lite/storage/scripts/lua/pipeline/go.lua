-- needs now
-- The turn of a run has come: it begins, if it waits.
-- KEYS[1] run  [2] outbox
-- returns {over: it is not to have its turn | run, outbox: step, round.attempt, ...}
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'WAITING' then
  redis.call('HSET', KEYS[1], 'state', 'RUNNING', 'filled', now_ms(), 'since', now_ms())
  return {'run', redis.call('HGETALL', KEYS[2])}
end
return {state == 'RUNNING' and 'run' or 'over', {}}

-- needs now
-- The turn of a run has come: it begins, if it waits.
-- KEYS: run outbox
-- ARGS: resumed
--   resumed: how often it had been resumed when it came to stand in line
-- returns {over: it is not to have its turn | run, outbox: step, round.attempt, ...}
local state, times = unpack(redis.call('HMGET', run, 'state', 'resumed'))
local same = (times or '0') == resumed
if same and state == 'WAITING' then
  redis.call('HSET', run, 'state', 'RUNNING', 'filled', now_ms(), 'since', now_ms())
  return {'run', redis.call('HGETALL', outbox)}
end
return {same and state == 'RUNNING' and 'run' or 'over', {}}

-- needs now
-- Begin a run whose turn has come, if it waits.
-- KEYS: run outbox
-- ARGS: resumed
--   resumed: how often the run had been resumed when it joined the line
-- returns {over: the run does not wait any more | run, outbox: step, round.attempt, ...}
local state, times = unpack(redis.call('HMGET', run, 'state', 'resumed'))
local same = (times or '0') == resumed
if same and state == 'WAITING' then
  redis.call('HSET', run, 'state', 'RUNNING', 'filled', now_ms(), 'since', now_ms())
  return {'run', redis.call('HGETALL', outbox)}
end
return {same and state == 'RUNNING' and 'run' or 'over', {}}

-- needs now
-- The turn of a run has come: it begins, if it waits.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone   ARGV[1] how often it had been resumed when it came to stand in line
-- returns {over: it is not to have its turn | run, outbox: step, round.attempt, ...}
local state, resumed = unpack(redis.call('HMGET', KEYS[1], 'state', 'resumed'))
local same = (resumed or '0') == ARGV[1]
if same and state == 'WAITING' then
  redis.call('HSET', KEYS[1], 'state', 'RUNNING', 'filled', now_ms(), 'since', now_ms())
  return {'run', redis.call('HGETALL', KEYS[4])}
end
return {same and state == 'RUNNING' and 'run' or 'over', {}}

-- needs now step run
-- Decide whether a step runs now. The guard of its task has stopped other copies of its message.
-- KEYS: run steps results gone
-- ARGS: step round attempt token again worker renew_ms
--   again: 1: the step can run again after its worker died
--   renew_ms: time between two signs of life of the step
-- returns {word, text}
--   run, params   the step runs now
--   over, state   the run has ended; GONE: there is no record of it any more
--   stale         the message is of another round, the step neither waits nor runs, or a copy died
--                 and the step must not run again
local r, s, number = read_run(), step_at(step), tonumber(attempt)
if r.state ~= 'RUNNING' then
  return {'over', r.state or 'GONE'}
end
if s.state ~= 'WAITING' and s.state ~= 'RUNNING' or s.round ~= tonumber(round) or number < s.attempt then
  return {'stale', ''}
end
if s.state == 'RUNNING' and s.token ~= token and s.attempt == number then
  -- The same attempt began before and did not end, because its worker died.
  s.deaths = s.deaths + 1
  if again ~= '1' or s.deaths > MAX_DEATHS then
    return {'stale', ''}
  end
end
s.state, s.attempt, s.token = 'RUNNING', number, token
s.again, s.worker, s.beat = again, worker, tonumber(renew_ms)
s.started = s.started or now
s.until_ms, s.due, s.percent, s.note = nil, nil, nil, nil
put_step(step, s)
keep(r)
return {'run', redis.call('HGET', results, 'stage:' .. r.stage) or ''}

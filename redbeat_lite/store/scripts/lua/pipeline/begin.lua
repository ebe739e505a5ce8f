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
attempt = tonumber(attempt)
local this_run, this_step = read_run(), step_at(step)
if this_run.state ~= 'RUNNING' then
  return {'over', this_run.state or 'GONE'}
end
local may_begin = this_step.state == 'WAITING' or this_step.state == 'RUNNING'
if not may_begin or this_step.round ~= tonumber(round) or attempt < this_step.attempt then
  return {'stale', ''}
end
local deaths = this_step.deaths
if this_step.state == 'RUNNING' and this_step.token ~= token and this_step.attempt == attempt then
  -- The same attempt began before and did not end, because its worker died.
  deaths = deaths + 1
  if again ~= '1' or deaths > MAX_DEATHS then
    return {'stale', ''}
  end
end
put_step(step, {state = 'RUNNING', round = this_step.round, attempt = attempt, token = token, again = again,
  deaths = deaths, tries = this_step.tries, started = this_step.started or now, worker = worker,
  beat = tonumber(renew_ms)})
postpone_expiry(this_run)
return {'run', redis.call('HGET', results, 'stage:' .. this_run.stage) or ''}

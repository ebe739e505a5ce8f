-- needs now step
-- Handle a step that runs but is not renewed, or waits while the guard drops each copy of its
-- message. The first call suspects the step. A later call lets it run again, or ends it.
-- KEYS: run steps
-- ARGS: step round token until_ms patience_ms
--   token: '': the step waits
--   until_ms: end of the lease in the guard's record of its task
--   patience_ms: time from the suspicion to the decision, besides that between two signs of life
-- returns suspect | again: the step waits to be published in the next round
--   | dead: the caller completes it as FAILED | stale: it has moved on
local this_step = step_at(step)
if redis.call('HGET', run, 'state') ~= 'RUNNING' or not is_at(this_step, round, token) then
  return 'stale'
end
if this_step.until_ms ~= until_ms then
  -- The step was never suspected, or its record was renewed since.
  this_step.until_ms, this_step.suspect = until_ms, now
  put_step(step, this_step)
end
if now < this_step.suspect + patience_ms + (this_step.beat or 0) then
  -- Wait, because the main process of a worker reports a dead child soon, and knows better what
  -- follows. After a jump of the clock or a suspended machine, the lease will soon be renewed.
  return 'suspect'
end
local deaths = this_step.deaths + 1
local must_not_rerun = token ~= '' and this_step.again ~= '1'
if must_not_rerun or deaths > MAX_DEATHS then
  return 'dead'
end
-- In the next round, the message has another id. So a late copy with the old id is stale.
put_step(step, {state = 'WAITING', round = this_step.round + 1, deaths = deaths, started = this_step.started,
  worker = this_step.worker})
return 'again'

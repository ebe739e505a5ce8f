-- needs now step run
-- Begin a run if its turn has come. End it if its deadline has passed or its steps are lost.
-- KEYS: run steps results gone
-- ARGS: turn
--   turn: '': the turn of the run has not come; else how often the run had been resumed when it
--     joined the line
-- returns {state, steps to publish, running}; a step is {step, round, attempt, token, tries}
--   state: of the run, '': the run was resumed since it joined the line, or does not exist
--   steps to publish: waiting steps that are due to be published, again or for the first time
--   running: steps that run; if the run has ended, steps to kill
--   With a turn, no steps are listed of a run that has run for 10 s.
local this_run = read_run()
if not this_run.state or (turn ~= '' and (this_run.resumed or '0') ~= turn) then
  return {'', {}, {}}
end
if this_run.state == 'RUNNING' and turn ~= '' and now > this_run.since + 10000 then
  -- Each run that waits behind this one asks whether it has begun. Its steps have their own checks.
  -- Earlier, the caller may have begun it and lost the reply.
  return {this_run.state, {}, {}}
end
if this_run.state == 'WAITING' and turn ~= '' then
  -- The deadline of a run counts from its turn.
  this_run.state, this_run.since = 'RUNNING', now
  redis.call('HSET', run, 'state', this_run.state, 'since', now)
  if this_run.left == '0' then
    -- The run was resumed, and the last steps of its stage succeeded after it had ended.
    begin_next_stage(this_run)
  end
end
local why
if this_run.deadline ~= '' and now >= this_run.since + this_run.deadline then
  why = 'has not ended within its deadline of ' .. this_run.deadline / 1000 .. ' s'
elseif redis.call('EXISTS', steps) == 0 then
  why = 'the server has lost the records of its steps'
end
if this_run.state == 'RUNNING' and why then
  redis.call('HSET', run, 'error', why)
  end_run(this_run, 'FAILED')
end
if is_live(this_run) then
  postpone_expiry(this_run)
end
local due, running = {}, {}
if this_run.state == 'RUNNING' or this_run.revoke == '1' then
  for step = this_run.first, redis.call('HLEN', steps) - 1 do
    local this_step = step_at(step)
    if this_step.state == 'RUNNING' then
      running[#running + 1] = {step, this_step.round, this_step.attempt, this_step.token, this_step.tries}
    elseif this_run.state == 'RUNNING' and this_step.state == 'WAITING' and (this_step.due or 0) <= now then
      due[#due + 1] = {step, this_step.round, this_step.attempt, '', this_step.tries}
    end
  end
end
return {this_run.state, due, running}

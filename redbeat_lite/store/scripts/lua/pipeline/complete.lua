-- needs now step run
-- Record how a step ended. After the last step of a stage, begin the next stage or end the run.
-- KEYS: run steps results gone
-- ARGS: step round attempt token outcome result
--   outcome: SUCCEEDED | FAILED | REVOKED   result: the result or the error
-- returns {word, steps to publish, as check.lua lists them}
--   wait: nothing follows before another step ends, or the run waits for its turn
--   | next: the run has ended or has these steps to publish, or this end was recorded before
--   | over: the run had ended before, or does not exist
--   | stale: the call is about another copy, round or attempt
-- Only the steps that this end lets begin are returned. To return all waiting steps, as check.lua
-- does, would take longer with each step of the stage, and would publish steps twice that another
-- process is about to publish.
local this_run, this_step = read_run(), step_at(step)
if not this_run.state then
  return {'over', {}}
end
-- No copy of a waiting step runs: it was revoked, has expired or was killed before it began.
local is_waiting = this_step.state == 'WAITING'
if this_step.round ~= tonumber(round) or (not is_waiting and this_step.token ~= token) then
  return {'stale', {}}
end
if not is_waiting and this_step.state ~= 'RUNNING' then
  return {'next', {}} -- This end was recorded before.
end
if is_waiting and (outcome == 'SUCCEEDED' or this_step.attempt ~= tonumber(attempt)) then
  return {'stale', {}}
end

local ended = outcome
if outcome == 'REVOKED' then
  -- A step that was revoked because the run has ended has not failed.
  ended = is_live(this_run) and 'FAILED' or 'ABORTED'
end
put_step(step, {state = ended, round = this_step.round, attempt = this_step.attempt, token = token,
  deaths = this_step.deaths, tries = this_step.tries, started = this_step.started, ended = now,
  worker = this_step.worker, percent = this_step.percent, note = this_step.note,
  error = ended ~= 'SUCCEEDED' and result or nil})
if ended == 'SUCCEEDED' then
  redis.call('HSET', results, step, result)
end
if not is_live(this_run) then
  return {'over', {}}
end
if ended ~= 'SUCCEEDED' then
  redis.call('HSET', run, 'error_step', step, 'error', result)
  end_run(this_run, 'FAILED')
  return {'next', {}}
end

local left = this_run.left - 1
redis.call('HSET', run, 'left', left)
postpone_expiry(this_run)
-- One step has ended, so one more may run.
local due = create_steps(this_run.last, 1)
if this_run.state == 'WAITING' then
  -- The run was resumed while this step ran. It goes on when its turn comes.
  return {'wait', {}}
end
if left == 0 then
  due = begin_next_stage(this_run)
end
local is_followed = left == 0 or #due > 0
return {is_followed and 'next' or 'wait', due}

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
local r, s = read_run(), step_at(step)
local waiting = s.state == 'WAITING'
if not r.state then
  return {'over', {}}
end
if s.round ~= tonumber(round) or not waiting and s.token ~= token then
  return {'stale', {}}
end
if not waiting and s.state ~= 'RUNNING' then
  return {'next', {}}
end
-- A waiting step has no token. It was revoked, has expired or was killed before it began.
if waiting and (outcome == 'SUCCEEDED' or s.attempt ~= tonumber(attempt)) then
  return {'stale', {}}
end

local live, ended = r.state == 'RUNNING' or r.state == 'WAITING', outcome
if outcome == 'REVOKED' then
  -- A step that was revoked because the run has ended has not failed.
  ended = live and 'FAILED' or 'ABORTED'
end
s.state, s.ended, s.token = ended, now, token
s.due, s.until_ms, s.suspect, s.again, s.beat = nil, nil, nil, nil, nil
s.error = ended ~= 'SUCCEEDED' and result or nil
put_step(step, s)
if ended == 'SUCCEEDED' then
  redis.call('HSET', results, step, result)
end
if not live then
  return {'over', {}}
end
if ended ~= 'SUCCEEDED' then
  redis.call('HSET', run, 'error_step', step, 'error', result)
  finish(r, 'FAILED')
  return {'next', {}}
end

local left = r.left - 1
redis.call('HSET', run, 'left', left)
keep(r)
-- One step has ended, so one more may run.
local due = fill(r.last, 1)
if r.state == 'WAITING' then
  -- The run was resumed while this step ran. It goes on when its turn comes.
  return {'wait', {}}
end
if left == 0 then
  due = advance(r)
end
return {left > 0 and #due == 0 and 'wait' or 'next', due}

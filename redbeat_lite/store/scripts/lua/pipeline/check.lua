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
local r = read_run()
if not r.state or turn ~= '' and (r.resumed or '0') ~= turn then
  return {'', {}, {}}
end
if r.state == 'WAITING' and turn ~= '' then
  -- The deadline of a run counts from its turn.
  r.state, r.since = 'RUNNING', now
  redis.call('HSET', run, 'state', r.state, 'since', now)
  if r.left == '0' then
    -- The run was resumed, and the last steps of its stage succeeded after it had ended.
    advance(r)
  end
end
local why
if r.deadline ~= '' and now >= r.since + r.deadline then
  why = 'has not ended within its deadline of ' .. r.deadline / 1000 .. ' s'
elseif redis.call('EXISTS', steps) == 0 then
  why = 'the server has lost the records of its steps'
end
if r.state == 'RUNNING' and why then
  redis.call('HSET', run, 'error', why)
  finish(r, 'FAILED')
end
if r.state == 'RUNNING' or r.state == 'WAITING' then
  keep(r)
end
local due, running = {}, {}
if r.state == 'RUNNING' or r.revoke == '1' then
  for step = r.first, redis.call('HLEN', steps) - 1 do
    local s = step_at(step)
    if s.state == 'RUNNING' then
      running[#running + 1] = {step, s.round, s.attempt, s.token, s.tries}
    elseif r.state == 'RUNNING' and s.state == 'WAITING' and (s.due or 0) <= now then
      due[#due + 1] = {step, s.round, s.attempt, '', s.tries}
    end
  end
end
return {r.state, due, running}

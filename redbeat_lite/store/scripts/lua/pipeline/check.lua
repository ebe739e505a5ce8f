-- needs now step run
-- Begin a run if its turn has come. End it if its deadline has passed or its steps are lost.
-- KEYS: run steps results gone
-- ARGS: turn
--   turn: how often the run had been resumed when it joined the line in which its turn has come,
--     '': its turn has not come
-- returns {state, steps to publish, running}; a step is {step, round, attempt, token, tries}
--   state: of the run, '': it was resumed since it joined the line, or does not exist
--   steps to publish: steps whose message was not published, or has not begun in time
--   running: steps that should be running; of a run that has ended, those to be killed
local r = read_run()
if not r.state or turn ~= '' and (r.resumed or '0') ~= turn then
  return {'', {}, {}}
end
local now = now_ms()
if r.state == 'WAITING' and turn ~= '' then
  -- The deadline of a run counts from its turn.
  r.state, r.since = 'RUNNING', now
  redis.call('HSET', run, 'state', r.state, 'since', now)
  if r.left == '0' then
    -- The run was resumed, and all steps of its stage have succeeded since it had ended.
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

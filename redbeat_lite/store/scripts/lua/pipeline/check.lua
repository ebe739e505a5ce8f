-- needs now step run
-- Check a run: end it if its deadline has passed or its steps are lost, and return what is left to be
-- done for it.
-- KEYS: run steps results gone
-- returns {state of the run, '': there is none; steps to publish; running}
--   running: steps that should be running; of a run that has ended, those to be killed
local r = read_run()
if not r.state then
  return {'', {}, {}}
end
local why
if r.deadline ~= '' and now_ms() >= r.since + r.deadline then
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
local running = {}
if r.state == 'RUNNING' or r.revoke == '1' or (r.state == 'FAILED' and r.revoke_siblings == '1') then
  for step = r.first, redis.call('HLEN', steps) - 1 do
    local s = step_at(step)
    if s.state == 'RUNNING' then
      running[#running + 1] = {step, s.round, s.attempt, s.token}
    end
  end
end
return {r.state, due_steps(r), running}

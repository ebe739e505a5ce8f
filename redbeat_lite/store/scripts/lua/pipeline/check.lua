-- needs now stage ending step
-- Check a run for the sweeper: end it if its deadline has passed, put steps whose message must be
-- lost into the outbox again, and return the steps that should be running.
-- KEYS: run steps results outbox gone
-- ARGS: ripe_ms remember_ms
--   ripe_ms: within which the process that filled the outbox publishes it
--   remember_ms: as for pipeline/complete
-- returns {gone | over | wait | run, outbox: step, round.attempt, ...,
--   running: {step, round, token, task id, attempt, 1: suspected}, ...}
--   of a run that is over, running has the steps that are still to be revoked
local record = redis.call('HMGET', run, 'state', 'stage', 'sizes', 'keep', 'filled', 'revoke', 'next', 'deadline',
  'since', 'revoke_siblings')
local state, revoke, now = record[1], record[6] == '1', now_ms()
if not state then
  return {'gone', {}, {}}
end
if state == 'RUNNING' and record[8] ~= '' and now >= record[9] + record[8] then
  redis.call('HSET', run, 'error', 'has not ended within its deadline of ' .. record[8] / 1000 .. ' s',
    'revoke', record[10])
  state, revoke = finish('FAILED'), record[10] == '1'
end
local running = {}
if state == 'RUNNING' or revoke then
  for step = steps_of(record[3], tonumber(record[2])), record[7] - 1 do
    local s = step_at(step)
    if s.state == 'RUNNING' then
      running[#running + 1] = {step, s.round, s.token, s.task, s.attempt, s.suspect and 1 or 0}
    elseif state == 'RUNNING' and s.state == 'WAITING' and (s.due or 0) <= now then
      redis.call('HSETNX', outbox, step, s.round .. '.' .. s.attempt)
    end
  end
end
if state ~= 'RUNNING' and state ~= 'WAITING' then
  return {'over', {}, running}
end
keep(record[4])
local ripe = state == 'RUNNING' and now - record[5] >= tonumber(ripe_ms)
return {state == 'WAITING' and 'wait' or 'run', ripe and redis.call('HGETALL', outbox) or {}, running}

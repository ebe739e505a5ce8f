-- needs now stage ending step
-- The sweeper's look at a run: end one whose deadline has come, put steps whose message must be lost into the outbox, and
-- name what should be running.
-- KEYS: run steps results outbox gone
-- ARGS: ripe_ms remember_ms
--   ripe_ms: that whoever filled the outbox has to empty it   remember_ms: as for pipeline/complete
-- returns {gone | over | wait for its turn | run, outbox: step, round.attempt, ...,
--   running: {step, round, token, task id, attempt, 1: suspected}, ..., entry in whose line it stands or '', how often resumed}
--   a run that is over is told with the steps that are still to be revoked
local record = redis.call('HMGET', run, 'state', 'stage', 'sizes', 'keep', 'filled', 'revoke', 'next', 'deadline',
  'since', 'revoke_siblings', 'waits', 'entry', 'resumed')
local state, revoke, now = record[1], record[6] == '1', now_ms()
if not state then
  return {'gone', {}, {}, '', '0'}
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
local entry, resumed = record[11] == '1' and record[12] or '', record[13] or '0'
if state ~= 'RUNNING' and state ~= 'WAITING' then
  return {'over', {}, running, entry, resumed}
end
for _, key in ipairs({run, steps, results, outbox}) do
  redis.call('PEXPIRE', key, record[4])
end
local ripe = state == 'RUNNING' and now - record[5] >= tonumber(ripe_ms)
return {state == 'WAITING' and 'wait' or 'run', ripe and redis.call('HGETALL', outbox) or {}, running, entry, resumed}

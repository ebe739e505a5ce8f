-- needs now stage ending step
-- The sweeper's look at a run: end one whose deadline has come, put steps whose message must be lost into the outbox, and
-- name what should be running.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] ms that whoever filled the outbox has to empty it  [2] as [7] of pipeline/complete
-- returns {gone | over | wait for its turn | run, outbox: step, round.attempt, ...,
--   running: {step, round, token, task id, attempt, 1: suspected}, ..., entry in whose line it stands or '', how often resumed}
--   a run that is over is told with the steps that are still to be revoked
local run = redis.call('HMGET', KEYS[1], 'state', 'stage', 'sizes', 'keep', 'filled', 'revoke', 'next', 'deadline',
  'since', 'revoke_siblings', 'waits', 'entry', 'resumed')
local state, revoke, now = run[1], run[6] == '1', now_ms()
if not state then
  return {'gone', {}, {}, '', '0'}
end
if state == 'RUNNING' and run[8] ~= '' and now >= run[9] + run[8] then
  redis.call('HSET', KEYS[1], 'error', 'has not ended within its deadline of ' .. run[8] / 1000 .. ' s',
    'revoke', run[10])
  state, revoke = finish(KEYS, 'FAILED', ARGV[2]), run[10] == '1'
end
local running = {}
if state == 'RUNNING' or revoke then
  for step = steps_of(run[3], tonumber(run[2])), run[7] - 1 do
    local s = step_at(KEYS[2], step)
    if s.state == 'RUNNING' then
      running[#running + 1] = {step, s.round, s.token, s.task, s.attempt, s.suspect and 1 or 0}
    elseif state == 'RUNNING' and s.state == 'WAITING' and (s.due or 0) <= now then
      redis.call('HSETNX', KEYS[4], step, s.round .. '.' .. s.attempt)
    end
  end
end
local entry, resumed = run[11] == '1' and run[12] or '', run[13] or '0'
if state ~= 'RUNNING' and state ~= 'WAITING' then
  return {'over', {}, running, entry, resumed}
end
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], run[4])
end
local ripe = state == 'RUNNING' and now - run[5] >= tonumber(ARGV[1])
return {state == 'WAITING' and 'wait' or 'run', ripe and redis.call('HGETALL', KEYS[4]) or {}, running, entry, resumed}

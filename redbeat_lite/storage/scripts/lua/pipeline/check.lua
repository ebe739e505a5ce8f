-- needs stage now step
-- The sweeper's look at a run: put steps whose message must be lost into the outbox, and name what should be running.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox
-- ARGV[1] ms that whoever filled the outbox has to empty it
-- returns {gone | over | wait for its turn | run, outbox: step, round.attempt, ..., running: step, round, token, task id, attempt, 1: suspected, ...}
--   a run that is over is told with the steps that are still to be revoked
local run = redis.call('HMGET', KEYS[1], 'state', 'stage', 'sizes', 'keep', 'filled', 'revoke')
if not run[1] then
  return {'gone', {}, {}}
end
if run[1] == 'WAITING' then
  for i = 1, 4 do
    redis.call('PEXPIRE', KEYS[i], run[4])
  end
  return {'wait', {}, {}}
end
local over = run[1] ~= 'RUNNING'
if over and not run[6] then
  return {'over', {}, {}}
end
local first, size = steps_of(run[3], tonumber(run[2]))
local now = now_ms()
local running = {}
for step = first, first + size - 1 do
  local s = step_at(KEYS[2], step)
  if s.state == 'RUNNING' then
    for _, value in ipairs({step, s.round, s.token, s.task, s.attempt, s.suspect and 1 or 0}) do
      running[#running + 1] = tostring(value)
    end
  elseif not over and s.state == 'WAITING' and (s.due or 0) <= now then
    redis.call('HSETNX', KEYS[4], step, s.round .. '.' .. s.attempt)
  end
end
if over then
  return {'over', {}, running}
end
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], run[4])
end
local outbox = {}
if now - tonumber(run[5]) >= tonumber(ARGV[1]) then
  outbox = redis.call('HGETALL', KEYS[4])
end
return {'run', outbox, running}

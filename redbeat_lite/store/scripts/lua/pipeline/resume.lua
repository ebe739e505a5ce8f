-- needs now stage ending step
-- A run that has ended goes on at its stage: with those of its steps that have not succeeded, each in another round, so
-- that no message from before counts. A run of an entry waits for its turn.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] as [7] of pipeline/complete  [2] how often it had been resumed when it was looked at  then ids of tasks that the
--     guard believed to run: these steps go on. None can have begun since that end
-- returns {its state now | '' somebody else was faster, outbox}
local run = redis.call('HMGET', KEYS[1], 'state', 'stage', 'sizes', 'next', 'keep', 'most', 'resumed', 'waits')
if (run[1] ~= 'FAILED' and run[1] ~= 'ABORTED') or (run[7] or '0') ~= ARGV[2] then
  return {'', {}}
end
local runs = {}
for i = 3, #ARGV do
  runs[ARGV[i]] = true
end
local first, size = steps_of(run[3], tonumber(run[2]))
local last, next, busy, anew = first + size - 1, tonumber(run[4]), 0, {}
for step = first, next - 1 do
  local s = step_at(KEYS[2], step)
  if s.state == 'RUNNING' and runs[s.task] then
    busy = busy + 1
  elseif s.state ~= 'SUCCEEDED' then
    anew[step] = s.round + 1
  end
end
local left = busy + last - next + 1
for step, round in pairs(anew) do
  put_step(KEYS[2], step, {state = 'WAITING', round = round})
  redis.call('HSET', KEYS[4], step, round .. '.0')
  left, busy = left + 1, busy + 1
end
local state = run[8] == '1' and 'WAITING' or 'RUNNING'
redis.call('HINCRBY', KEYS[1], 'resumed', 1)
redis.call('HDEL', KEYS[1], 'ended', 'error', 'error_step', 'revoke')
redis.call('HSET', KEYS[1], 'state', state, 'left', left, 'next', fill(KEYS[4], next, last, run[6] - busy),
  'filled', now_ms(), 'since', now_ms())
redis.call('DEL', KEYS[5])
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], run[5])
end
state = left == 0 and advance(KEYS, state, ARGV[1]) or state
return {state, state == 'RUNNING' and redis.call('HGETALL', KEYS[4]) or {}}

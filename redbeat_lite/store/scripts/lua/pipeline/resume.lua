-- needs now stage ending step
-- Resume a run that has ended, at its stage. Steps that have not succeeded run again, each in another
-- round, so that no earlier message counts. A run of an entry waits for its turn.
-- KEYS: run steps results outbox gone
-- ARGS: remember_ms resumed ids...
--   remember_ms: as for pipeline/complete
--   resumed: how often the run had been resumed when the caller read it
--   ids: of tasks that run by the guard's records. Their steps go on. None can have begun since the
--     run ended
-- returns {state of the run | '': another process was faster, outbox}
local record = redis.call('HMGET', run, 'state', 'stage', 'sizes', 'next', 'keep', 'most', 'resumed', 'waits')
if (record[1] ~= 'FAILED' and record[1] ~= 'ABORTED') or (record[7] or '0') ~= resumed then
  return {'', {}}
end
local runs = {}
for _, id in ipairs(ids) do
  runs[id] = true
end
local first, size = steps_of(record[3], tonumber(record[2]))
local last, next, busy, anew = first + size - 1, tonumber(record[4]), 0, {}
for step = first, next - 1 do
  local s = step_at(step)
  if s.state == 'RUNNING' and runs[s.task] then
    busy = busy + 1
  elseif s.state ~= 'SUCCEEDED' then
    anew[step] = s.round + 1
  end
end
local left = busy + last - next + 1
for step, round in pairs(anew) do
  put_step(step, {state = 'WAITING', round = round})
  redis.call('HSET', outbox, step, round .. '.0')
  left, busy = left + 1, busy + 1
end
local state = record[8] == '1' and 'WAITING' or 'RUNNING'
redis.call('HINCRBY', run, 'resumed', 1)
redis.call('HDEL', run, 'ended', 'error', 'error_step', 'revoke')
redis.call('HSET', run, 'state', state, 'left', left, 'next', fill(next, last, record[6] - busy),
  'filled', now_ms(), 'since', now_ms())
redis.call('DEL', gone)
keep(record[5])
state = left == 0 and advance(state) or state
return {state, state == 'RUNNING' and redis.call('HGETALL', outbox) or {}}

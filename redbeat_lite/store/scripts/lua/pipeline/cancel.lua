-- needs now stage ending step
-- End a run before its time. Sent twice, the second does nothing but name what still runs.
-- KEYS: run steps results outbox gone
-- ARGS: remember_ms why terminate
--   remember_ms: as for pipeline/complete   why: it is left out, which only one that waits can be, or ''
--   terminate: 1: what runs is to be killed
-- returns {1 ended by this, 0 had ended, -1 there is no such run; ids of the tasks that run}
local record = redis.call('HMGET', run, 'state', 'stage', 'sizes')
if not record[1] then
  return {-1, {}}
end
local first, size = steps_of(record[3], tonumber(record[2]))
local running = {}
for step = first, first + size - 1 do
  local s = step_at(step)
  if s.state == 'RUNNING' then
    running[#running + 1] = s.task
  end
end
if #running > 0 and terminate == '1' then
  redis.call('HSET', run, 'revoke', 1)
end
if record[1] ~= 'WAITING' and (record[1] ~= 'RUNNING' or why ~= '') then
  return {0, running}
end
if why ~= '' then
  redis.call('HSET', run, 'error', why)
end
finish('ABORTED')
return {1, running}

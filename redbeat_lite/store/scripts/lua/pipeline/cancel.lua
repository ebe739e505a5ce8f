-- needs now stage ending step
-- End a run before its time. A second send only returns the tasks that still run.
-- KEYS: run steps results outbox gone
-- ARGS: remember_ms why terminate
--   remember_ms: as for pipeline/complete
--   why: reason for which a waiting run is left out; '': end a run in any state
--   terminate: 1: the tasks that run are killed
-- returns {1 the call ended the run | 0 it had ended | -1 there is no such run; ids of the tasks that run}
local record = redis.call('HMGET', run, 'state', 'stage', 'sizes')
if not record[1] then
  return {-1, {}}
end
local first, size = steps_of(record[3], tonumber(record[2]))
local running = running_tasks(first, first + size - 1)
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

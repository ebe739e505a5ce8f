-- needs now stage ending step
-- End a run before its time. Sent twice, the second does nothing but name what still runs.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] as [7] of pipeline/complete  [2] why it is left out, which only one that waits can be, or ''  [3] 1: what runs is to be killed
-- returns {1 ended by this, 0 had ended, -1 there is no such run; ids of the tasks that run}
local run = redis.call('HMGET', KEYS[1], 'state', 'stage', 'sizes')
if not run[1] then
  return {-1, {}}
end
local first, size = steps_of(run[3], tonumber(run[2]))
local running = {}
for step = first, first + size - 1 do
  local s = step_at(KEYS[2], step)
  if s.state == 'RUNNING' then
    running[#running + 1] = s.task
  end
end
if #running > 0 and ARGV[3] == '1' then
  redis.call('HSET', KEYS[1], 'revoke', 1)
end
if run[1] ~= 'WAITING' and (run[1] ~= 'RUNNING' or ARGV[2] ~= '') then
  return {0, running}
end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'error', ARGV[2])
end
finish(KEYS, 'ABORTED', ARGV[1])
return {1, running}

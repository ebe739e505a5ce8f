-- needs now step run
-- Let a run that has ended wait for its turn. Steps of its stage that have not succeeded run again,
-- each in another round, so that earlier messages are stale.
-- KEYS: run steps results gone
-- ARGS: resumed alive...
--   resumed: how often the run had been resumed when the caller read it
--   alive: numbers of the steps that still run, as the guard's records tell. They go on. No step
--     can have begun since the run ended
-- returns resumed | lost: the server has lost the steps | killed: steps that run must be killed
--   | stale: another process has resumed the run, or it is neither FAILED nor ABORTED
local r = read_run()
if r.state ~= 'FAILED' and r.state ~= 'ABORTED' or (r.resumed or '0') ~= resumed then
  return 'stale'
end
if redis.call('EXISTS', steps) == 0 then
  return 'lost'
end
if r.revoke == '1' and #alive > 0 then
  return 'killed'
end
local goes_on = {}
for _, step in ipairs(alive) do
  goes_on[tonumber(step)] = true
end
local left, busy = r.last - r.first + 1, 0
for step = r.first, redis.call('HLEN', steps) - 1 do
  local s = step_at(step)
  if s.state == 'SUCCEEDED' then
    left = left - 1
  else
    busy = busy + 1
    if s.state ~= 'RUNNING' or not goes_on[step] then
      put_step(step, {state = 'WAITING', round = s.round + 1})
    end
  end
end
redis.call('HINCRBY', run, 'resumed', 1)
redis.call('HDEL', run, 'ended', 'error', 'error_step', 'revoke')
redis.call('HSET', run, 'state', 'WAITING', 'left', left, 'since', now)
fill(r.last, r.most - busy)
redis.call('DEL', gone)
keep(r)
return 'resumed'

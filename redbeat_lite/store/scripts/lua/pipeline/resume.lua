-- needs now step run
-- Let a run that has ended wait for its turn. Steps of its stage that have not succeeded run again,
-- each in another round, so that earlier messages are stale.
-- KEYS: run steps results gone
-- ARGS: resumed until_ms alive...
--   resumed: how often the run had been resumed when the caller read it
--   until_ms: when the sweeper looks for the run, and forgets it if it has ended
--   alive: numbers of the steps that still run, as the guard's records tell. They go on. No step
--     can have begun since the run ended
-- returns resumed | lost: the server has lost the steps | killed: steps that run must be killed
--   | stale: another process has resumed the run, or it is neither FAILED nor ABORTED | late
local this_run = read_run()
local has_failed = this_run.state == 'FAILED' or this_run.state == 'ABORTED'
if not has_failed or (this_run.resumed or '0') ~= resumed then
  return 'stale'
end
if now >= tonumber(until_ms) then
  return 'late'
end
if redis.call('EXISTS', steps) == 0 then
  return 'lost'
end
if this_run.revoke == '1' and #alive > 0 then
  return 'killed'
end
local goes_on = {}
for _, step in ipairs(alive) do
  goes_on[tonumber(step)] = true
end
local left = this_run.last - this_run.first + 1 -- steps of the stage that have not succeeded
local created = 0 -- how many of them have a record
for step = this_run.first, redis.call('HLEN', steps) - 1 do
  local this_step = step_at(step)
  if this_step.state == 'SUCCEEDED' then
    left = left - 1
  else
    created = created + 1
    if this_step.state ~= 'RUNNING' or not goes_on[step] then
      put_step(step, {state = 'WAITING', round = this_step.round + 1})
    end
  end
end
redis.call('HINCRBY', run, 'resumed', 1)
redis.call('HDEL', run, 'ended', 'error', 'error_step', 'revoke')
redis.call('HSET', run, 'state', 'WAITING', 'left', left, 'since', now)
create_steps(this_run.last, this_run.most - created)
redis.call('DEL', gone)
postpone_expiry(this_run)
return 'resumed'

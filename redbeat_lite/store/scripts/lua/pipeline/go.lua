-- needs now step run
-- Begin a run whose turn has come, if it waits.
-- KEYS: run steps results gone
-- ARGS: resumed
--   resumed: how often the run had been resumed when it joined the line
-- returns {state of the run, '': it was resumed since or does not exist; steps to publish}
local r = read_run()
if not r.state or (r.resumed or '0') ~= resumed then
  return {'', {}}
end
if r.state == 'WAITING' then
  r.state = 'RUNNING'
  redis.call('HSET', run, 'state', r.state)
  if r.overlap and r.overlap ~= 'allow' then
    -- The deadline of a run that may have waited for others counts from its turn.
    redis.call('HSET', run, 'since', now_ms())
  end
  if r.left == '0' then
    -- The run was resumed, and all steps of its stage have succeeded since it had ended.
    advance(r)
  end
end
return {r.state, due_steps(r)}

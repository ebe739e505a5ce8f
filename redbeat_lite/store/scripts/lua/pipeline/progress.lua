-- needs step
-- Record the progress of a running step.
-- KEYS: steps
-- ARGS: step round token percent note
local s = step_at(step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(round) or s.token ~= token then
  return -- another copy has the step, or it does not run any more
end
s.percent, s.note = tonumber(percent), note
put_step(step, s)

-- needs step
-- Note what a step tells of its progress while it runs.
-- KEYS: steps
-- ARGS: step round token percent note
local s = step_at(step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(round) or s.token ~= token then
  return -- it is another copy's, or does not run any more
end
s.percent, s.note = tonumber(percent), note
put_step(step, s)

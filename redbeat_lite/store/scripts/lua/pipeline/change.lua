-- needs now step
-- Change a step, but only if it waits or runs as the caller says.
-- KEYS: steps
-- ARGS: step round attempt token fields due_ms
--   token: '': the step waits
--   fields: JSON of the fields to set
--   due_ms: time until the step is published, '': unchanged
local this_step = step_at(step)
if this_step.attempt ~= tonumber(attempt) or not is_at(this_step, round, token) then
  return
end
for field, value in pairs(cjson.decode(fields)) do
  this_step[field] = value
end
if due_ms ~= '' then
  this_step.due = now + due_ms
end
put_step(step, this_step)

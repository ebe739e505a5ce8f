-- needs now step
-- Change a step, but only if it waits or runs as the caller says.
-- KEYS: steps
-- ARGS: step round attempt token fields due_ms
--   token: '': the step waits
--   fields: JSON of the fields to set
--   due_ms: time until the step is published, '': unchanged
local s = step_at(step)
if s.attempt ~= tonumber(attempt) or not is_at(s, round, token) then
  return
end
for field, value in pairs(cjson.decode(fields)) do
  s[field] = value
end
if due_ms ~= '' then
  s.due = now + due_ms
end
put_step(step, s)

-- needs step
-- Change a running step, but only for the copy that runs it. A change is a sign of life, so the copy
-- is not suspected to be dead any more.
-- KEYS: steps
-- ARGS: step round token fields
--   fields: JSON of the fields to set
-- returns 1 changed | 0 another copy has the step, or it does not run any more
local s = step_at(step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(round) or s.token ~= token then
  return 0
end
for field, value in pairs(cjson.decode(fields)) do
  s[field] = value
end
s.suspect = nil
put_step(step, s)
return 1

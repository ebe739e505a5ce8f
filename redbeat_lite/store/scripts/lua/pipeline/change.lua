-- needs now step
-- Change a running step, but only for the copy that runs it.
-- KEYS: steps
-- ARGS: step round token fields publish_ms
--   fields: JSON of the fields to set
--   publish_ms: from now until the message of its next attempt is published, '': none follows
local s = step_at(step)
if s.state ~= 'RUNNING' or s.round ~= tonumber(round) or s.token ~= token then
  return
end
for field, value in pairs(cjson.decode(fields)) do
  s[field] = value
end
if publish_ms ~= '' then
  s.due = now_ms() + publish_ms
end
put_step(step, s)

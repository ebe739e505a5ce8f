-- Return a run for display. Its steps are one text, because a client parses that faster than a reply
-- for each step.
-- KEYS: run steps gone
-- returns {fields of the run, JSON: number of a step -> its record, end of a run whose record has
--   expired, or ''}
local flat, told = redis.call('HGETALL', steps), {}
for i = 1, #flat, 2 do
  told[#told + 1] = '"' .. flat[i] .. '":' .. flat[i + 1]
end
return {redis.call('HGETALL', run), '{' .. table.concat(told, ',') .. '}', redis.call('GET', gone) or ''}

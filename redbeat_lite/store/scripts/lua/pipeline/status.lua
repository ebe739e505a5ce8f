-- All that people are told of a run, in one text however many steps it has: parsing as many replies takes a client longer.
-- KEYS: run steps gone
-- returns {fields of the run, JSON: number of a step -> what is recorded of it, how it ended if only that is known or ''}
local flat, told = redis.call('HGETALL', steps), {}
for i = 1, #flat, 2 do
  told[#told + 1] = '"' .. flat[i] .. '":' .. flat[i + 1]
end
return {redis.call('HGETALL', run), '{' .. table.concat(told, ',') .. '}', redis.call('GET', gone) or ''}

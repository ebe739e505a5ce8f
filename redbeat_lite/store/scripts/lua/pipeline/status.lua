-- All that people are told of a run, in one text however many steps it has: parsing as many replies takes a client longer.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- returns {fields of the run, JSON: number of a step -> what is recorded of it, how it ended if only that is known or ''}
local flat, told = redis.call('HGETALL', KEYS[2]), {}
for i = 1, #flat, 2 do
  told[#told + 1] = '"' .. flat[i] .. '":' .. flat[i + 1]
end
return {redis.call('HGETALL', KEYS[1]), '{' .. table.concat(told, ',') .. '}', redis.call('GET', KEYS[5]) or ''}

-- One page of the schedule in due order; changes nothing.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state   ARGV[1] first rank  ARGV[2] last rank
-- returns {{name, score, ...}, {definition, ...}, {state, ...}}, or {{}} beyond the end
local ranked = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES')
if #ranked == 0 then
  return {ranked}
end
local names = {}
for i = 1, #ranked, 2 do
  names[#names + 1] = ranked[i]
end

local function of_each(key)
  local values = {}
  for n = 1, #names, 1000 do -- unpack() has a limit
    for i, value in ipairs(redis.call('HMGET', key, unpack(names, n, math.min(n + 999, #names)))) do
      values[n + i - 1] = value
    end
  end
  return values
end

return {ranked, of_each(KEYS[2]), of_each(KEYS[3])}

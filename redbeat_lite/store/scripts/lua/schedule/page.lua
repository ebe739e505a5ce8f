-- One page of the schedule in due order; changes nothing. At most 1,000 ranks, which unpack() can take.
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
return {ranked, redis.call('HMGET', KEYS[2], unpack(names)), redis.call('HMGET', KEYS[3], unpack(names))}

-- needs cut
-- One page of the schedule in due order; changes nothing. At most 1,000 ranks, which unpack() can take.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state   ARGV[1] first rank  ARGV[2] last rank  ARGV[3] bytes of a text that are of any use
-- returns {{name, score, ...}, {definition, ...}, {state, ...}}, or {{}} beyond the end
local ranked = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2], 'WITHSCORES')
if #ranked == 0 then
  return {ranked}
end
local names = {}
for i = 1, #ranked, 2 do
  names[#names + 1] = ranked[i]
end
local most = tonumber(ARGV[3])
return {ranked, all_cut(redis.call('HMGET', KEYS[2], unpack(names)), most),
  all_cut(redis.call('HMGET', KEYS[3], unpack(names)), most)}

-- Return a page of the schedule in due order. It changes nothing. A page has 1,000 ranks at most,
-- because unpack() takes no more than some thousands.
-- KEYS: due entries state
-- ARGS: first last
--   first, last: ranks
-- returns {{name, score, ...}, {definition, ...}, {state, ...}}, or {{}} beyond the end
local ranked = redis.call('ZRANGE', due, first, last, 'WITHSCORES')
if #ranked == 0 then
  return {ranked}
end
local names = {}
for i = 1, #ranked, 2 do
  names[#names + 1] = ranked[i]
end
return {ranked, redis.call('HMGET', entries, unpack(names)), redis.call('HMGET', state, unpack(names))}

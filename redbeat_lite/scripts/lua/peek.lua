-- needs cut
-- What is due, with all that is needed to plan it; changes nothing.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state
-- ARGV[1] token  ARGV[2] term  ARGV[3] now_ms  ARGV[4] limit  ARGV[5] bytes of a text that are of any use
-- returns {0} this term is over
--       | {1, {name, score, ...}, {definition, ...}, {state, ...}} at most limit entries, earliest first
--       | {1, {name, score}} nothing is due; the first entry to come, or {1, {}} when none is stored
local held = redis.call('HMGET', KEYS[1], 'token', 'term')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return {0}
end
local due = redis.call('ZRANGE', KEYS[2], '-inf', ARGV[3], 'BYSCORE', 'LIMIT', 0, ARGV[4], 'WITHSCORES')
if #due == 0 then
  return {1, redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')}
end
local names = {}
for i = 1, #due, 2 do
  names[#names + 1] = due[i]
end
local most = tonumber(ARGV[5])
return {1, due, all_cut(redis.call('HMGET', KEYS[3], unpack(names)), most),
  all_cut(redis.call('HMGET', KEYS[4], unpack(names)), most)}

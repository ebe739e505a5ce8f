-- needs leads
-- What is due, with all that is needed to plan it; changes nothing.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] meta  KEYS[6] due of the backfills
-- ARGV[1] token  ARGV[2] term  ARGV[3] now_ms  ARGV[4] limit
-- ARGV[5] bytes of texts after which the rest is left to the next call  ARGV[6] revision of the freezes that is known
-- returns {0} this term is over
--       | {-2, freezes} they are of another revision; '' where none are stored
--       | {first, {name, score, ...}, {definition, ...}, {state, ...}} at most limit entries: the oldest, the newest,
--           the second oldest, and so on, so that a backlog and new entries both make progress
--       | {first, {name, score}} nothing is due; the first entry to come, or {first, {}} when none is stored
-- where first is the score of the first backfill, 'inf' when none is stored
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
local freezes = redis.call('HGET', KEYS[5], 'freezes') or ''
if string.match(freezes, '^[^|]*') ~= ARGV[6] then
  return {-2, freezes}
end
local first = redis.call('ZRANGE', KEYS[6], 0, 0, 'WITHSCORES')[2] or 'inf'
local number = math.min(redis.call('ZCOUNT', KEYS[2], '-inf', ARGV[3]), ARGV[4])
if number <= 0 then
  return {first, redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')}
end
local half = math.floor(number / 2)
local oldest = redis.call('ZRANGE', KEYS[2], '-inf', ARGV[3], 'BYSCORE', 'LIMIT', 0, number - half, 'WITHSCORES')
local newest = redis.call('ZRANGE', KEYS[2], ARGV[3], '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, half, 'WITHSCORES')

local SLICE = 50 -- entries read at a time: what they hold is known only then
local room = tonumber(ARGV[5])
local ranked, definitions, states = {}, {}, {}

local function add(target, texts)
  for _, each in ipairs(texts) do
    target[#target + 1] = each
    room = room - (each and #each or 0)
  end
end

for at = 0, number - 1, SLICE do
  local names = {}
  for n = at, math.min(at + SLICE, number) - 1 do
    local ranks, i = n % 2 == 0 and oldest or newest, n - n % 2 + 1
    names[#names + 1] = ranks[i]
    ranked[#ranked + 1], ranked[#ranked + 2] = ranks[i], ranks[i + 1]
  end
  add(definitions, redis.call('HMGET', KEYS[3], unpack(names)))
  add(states, redis.call('HMGET', KEYS[4], unpack(names)))
  if room <= 0 then
    break
  end
end
return {first, ranked, definitions, states}

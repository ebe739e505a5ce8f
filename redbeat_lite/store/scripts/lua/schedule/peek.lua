-- needs leads
-- Return due entries with all that is needed to plan them; change nothing.
-- KEYS: leader due entries state meta backfills_due
-- ARGS: token term now limit most_bytes revision
--   now: epoch ms
--   limit: most entries
--   most_bytes: of definitions and states; the rest is left to the next call
--   revision: of the freezes that the leader knows
-- returns {0} this term is over
--       | {-2, freezes} the freezes have another revision; '' if none are stored
--       | {backfill, {name, score, ...}, {definition, ...}, {state, ...}} the oldest entry, the newest, the second
--           oldest, and so on, so that a backlog and new entries both make progress
--       | {backfill, {name, score}} nothing is due; the next entry to come, or {backfill, {}} if none is stored
-- where backfill is the score of the first backfill, 'inf' if none is stored
if not leads(leader, token, term) then
  return {0}
end
local freezes = redis.call('HGET', meta, 'freezes') or ''
if string.match(freezes, '^[^|]*') ~= revision then
  return {-2, freezes}
end
local backfill = redis.call('ZRANGE', backfills_due, 0, 0, 'WITHSCORES')[2] or 'inf'
local number = math.min(redis.call('ZCOUNT', due, '-inf', now), limit)
if number <= 0 then
  return {backfill, redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')}
end
local half = math.floor(number / 2)
local oldest = redis.call('ZRANGE', due, '-inf', now, 'BYSCORE', 'LIMIT', 0, number - half, 'WITHSCORES')
local newest = redis.call('ZRANGE', due, now, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, half, 'WITHSCORES')

local SLICE = 50 -- Entries that are read at a time, because their size is known only then.
local room = tonumber(most_bytes)
local ranked, definitions, states = {}, {}, {}

local function add(target, texts)
  for _, text in ipairs(texts) do
    target[#target + 1] = text
    room = room - (text and #text or 0)
  end
end

for at = 0, number - 1, SLICE do
  local names = {}
  for n = at, math.min(at + SLICE, number) - 1 do
    local ranks, i = n % 2 == 0 and oldest or newest, n - n % 2 + 1
    names[#names + 1] = ranks[i]
    ranked[#ranked + 1], ranked[#ranked + 2] = ranks[i], ranks[i + 1]
  end
  add(definitions, redis.call('HMGET', entries, unpack(names)))
  add(states, redis.call('HMGET', state, unpack(names)))
  if room <= 0 then
    break
  end
end
return {backfill, ranked, definitions, states}

-- needs leads
-- Return due entries with all that is needed to plan them; change nothing.
-- KEYS: leader due entries state meta backfills_due
-- ARGS: token term now limit revision
--   now: epoch ms
--   limit: most entries; unpack() takes no more than some thousands
--   revision: of the freezes that the leader knows
-- returns {0} this term is over
--       | {-2, freezes} the freezes have another revision; '' if none are stored
--       | {backfill, {name, score, ...}, {definition, ...}, {state, ...}} the oldest entry, the newest,
--           the second oldest, and so on, so that a backlog and new entries both make progress
--       | {backfill, {name, score}} nothing is due; the next entry to come, or {backfill, {}} if none
--           is stored
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

local names, ranked = {}, {}
local function add(name, score)
  names[#names + 1] = name
  ranked[#ranked + 1], ranked[#ranked + 2] = name, score
end
for i = 1, #oldest, 2 do
  add(oldest[i], oldest[i + 1])
  if newest[i] then
    add(newest[i], newest[i + 1])
  end
end
local definitions = redis.call('HMGET', entries, unpack(names))
return {backfill, ranked, definitions, redis.call('HMGET', state, unpack(names))}

-- needs leads parts
-- Return due entries with all that is needed to plan them; change nothing.
-- KEYS: leader due entries state meta backfills_due
-- ARGS: token term now limit revision
--   now: epoch ms
--   limit: most entries
--   revision: of the freezes that the leader knows
-- returns {0} this term is over
--       | {-2, freezes} the freezes have another revision; '' if none are stored
--       | {backfill, first, due entries as in shared/parts.lua}
--   backfill: score of the first backfill, 'inf' if none is stored
--   first: {name, score} of the entry that is due first, {} if none is stored
-- The due entries are in due order. If more are due than the limit, they are the oldest half and the
-- newest half, so that a backlog and new entries both make progress.
if not leads(leader, token, term) then
  return {0}
end
local freezes = redis.call('HGET', meta, 'freezes') or ''
if string.match(freezes, '^[^|]*') ~= revision then
  return {-2, freezes}
end
local backfill = redis.call('ZRANGE', backfills_due, 0, 0, 'WITHSCORES')[2] or 'inf'
local count = redis.call('ZCOUNT', due, '-inf', now)
local number = math.min(count, limit)
local names = {}
if number > 0 then
  local half = math.floor(number / 2)
  names = redis.call('ZRANGE', due, 0, number - half - 1)
  for _, name in ipairs(redis.call('ZRANGE', due, count - half, count - 1)) do
    names[#names + 1] = name
  end
end
return {backfill, redis.call('ZRANGE', due, 0, 0, 'WITHSCORES'), parts_of(names)}

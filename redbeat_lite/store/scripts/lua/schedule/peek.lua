-- needs leads parts
-- Return due entries with all that is needed to plan them.
-- KEYS: leader due entries state meta backfills_due
-- ARGS: token term now limit
--   now: epoch ms   limit: most entries
-- returns {0} this term is over
--       | {backfill, first, due entries as in shared/parts.lua, freeze}
--   backfill: score of the first backfill, or 'inf'   freeze: text of the last freeze, or ''
--   first: {name, score} of the entry that is due first, or {}
-- While a freeze holds, no entry is due, and the first entry and backfill are due when it ends.
-- If more entries are due than the limit, half of those returned are the oldest, half the newest.
if not leads(leader, token, term) then
  return {0}
end
local freeze = redis.call('HGET', meta, 'freeze') or ''
local frozen_until = string.match(freeze, '^(%d+)|') or '0'
if tonumber(frozen_until) > tonumber(now) then
  return {frozen_until, {'', frozen_until}, parts_of({}), freeze}
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
return {backfill, redis.call('ZRANGE', due, 0, 0, 'WITHSCORES'), parts_of(names), freeze}

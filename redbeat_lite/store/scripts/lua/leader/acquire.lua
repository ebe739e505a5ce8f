-- needs now change
-- Become leader, if nobody is; or learn how long the leader's lease still runs.
-- KEYS: leader meta beats changes
-- ARGS: token lease_ms host pid format change
--   change: what the record tells of a term that begins
-- returns {1, now_ms, term, zones, set_back} leading, the last two as the leader before left them in meta, or ''
--       | {0, now_ms, ms until the lease runs out} somebody else leads
--       | {-1, format} the schedule has another format
local FORGOTTEN = 3600000 -- ms after which a beat that fell silent is dropped from the list
local TOLERANCE = 1000 -- ms by which this clock may be behind the last leader's sign of life before it counts as set back

local stored = tonumber(redis.call('HGET', meta, 'format') or '')
if stored and stored ~= tonumber(format) then
  return {-1, stored}
end

local ms = now_ms()

local function expected(wait) -- this beat is silent from then on, as long as nothing is heard of it
  redis.call('ZREMRANGEBYSCORE', beats, '-inf', string.format('%.0f', ms - FORGOTTEN))
  redis.call('ZADD', beats, string.format('%.0f', ms + wait), token)
  redis.call('PEXPIRE', beats, string.format('%.0f', wait + FORGOTTEN))
end

if redis.call('EXISTS', leader) == 1 and redis.call('HGET', leader, 'token') ~= token then
  local left = redis.call('PTTL', leader)
  if left < 0 then -- a lease that would never end
    redis.call('PEXPIRE', leader, lease_ms)
    left = tonumber(lease_ms)
  end
  expected(left)
  return {0, ms, left}
end

expected(0) -- as each renewal will say
if redis.call('EXISTS', leader) == 0 then
  local before = redis.call('HMGET', meta, 'term', 'ticked')
  local term = redis.pcall('HINCRBY', meta, 'term', 1)
  if type(term) == 'table' then -- an error: it was no number
    redis.call('HSET', meta, 'term', 1)
    term = 1
  end
  local ticked = string.format('%.0f', ms)
  if (tonumber(before[2]) or 0) > ms + TOLERANCE then
    redis.call('HSET', meta, 'set_back', ticked)
  end
  redis.call('HSET', meta, 'format', format, 'ticked', ticked)
  redis.call('HSET', leader, 'token', token, 'term', term, 'host', host, 'pid', pid, 'since',
    string.format('%.0f', math.floor(ms / 1000)))
  local fields = {{'term', before[1] or cjson.null, tostring(term)}, {'ticked', before[2] or cjson.null, ticked}}
  note_change(change, cjson.encode(fields), {})
end
redis.call('PEXPIRE', leader, lease_ms)
local left = redis.call('HMGET', meta, 'zones', 'set_back')
return {1, ms, tonumber(redis.call('HGET', leader, 'term')), left[1] or '', left[2] or ''}

-- needs now change
-- Become the leader if there is none, or learn how long the lease of the leader still runs.
-- KEYS: leader meta beats changes
-- ARGS: token lease_ms host pid format change
--   change: JSON for the record of changes if a term begins
-- returns {1, now_ms, 0, term, zones, set_back} this beat leads; the last two from meta, or ''
--       | {0, now_ms, ms until the lease expires, 0, '', ''} another beat leads
--       | {-1, format} the schedule has another format
local FORGOTTEN = 3600000 -- ms after which a silent beat is removed from the list
-- If this clock is more ms behind the last leader's sign of life, it was set back.
local TOLERANCE = 1000

local stored = tonumber(redis.call('HGET', meta, 'format') or '')
if stored and stored ~= tonumber(format) then
  return {-1, stored}
end
local is_led = redis.call('EXISTS', leader) == 1
local is_taken = is_led and redis.call('HGET', leader, 'token') ~= token
local left = is_taken and redis.call('PTTL', leader) or 0
if left < 0 then -- the key has no expiry, so the lease would never end
  redis.call('PEXPIRE', leader, lease_ms)
  left = tonumber(lease_ms)
end
-- A beat that stands by calls again after the lease. It counts as silent only from then on.
redis.call('ZREMRANGEBYSCORE', beats, '-inf', now - FORGOTTEN)
redis.call('ZADD', beats, now + left, token)
redis.call('PEXPIRE', beats, left + FORGOTTEN)
if is_taken then
  return {0, now, math.max(left, 1), 0, '', ''} -- 0 ms would mean that this beat leads
end

if not is_led then
  local old = redis.call('HMGET', meta, 'term', 'ticked')
  local last_term = tonumber(old[1] or '') or 0
  local last_tick = tonumber(old[2] or '') or 0
  local term = 1
  -- Another program may have written any number. Above 2 ^ 53, Lua cannot add one to a number.
  if last_term >= 0 and last_term < 2 ^ 53 then
    term = math.floor(last_term) + 1
  end
  local ticked = string.format('%.0f', now)
  if last_tick > now + TOLERANCE then
    redis.call('HSET', meta, 'set_back', ticked)
  end
  redis.call('HSET', meta, 'term', term, 'format', format, 'ticked', ticked)
  redis.call('HSET', leader, 'token', token, 'term', term, 'host', host, 'pid', pid, 'since', math.floor(now / 1000))
  local fields = {{'term', old[1] or cjson.null, tostring(term)}, {'ticked', old[2] or cjson.null, ticked}}
  record_change(change, cjson.encode(fields), {})
end
redis.call('PEXPIRE', leader, lease_ms)
local term = tonumber(redis.call('HGET', leader, 'term'))
local of_meta = redis.call('HMGET', meta, 'zones', 'set_back')
return {1, now, 0, term, of_meta[1] or '', of_meta[2] or ''}

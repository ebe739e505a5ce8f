-- needs now leads
-- Extend the leader's lease, but only for its holder; and have a look at whether the schedule is still whole.
-- KEYS: leader due entries state meta beats backfills_due
-- ARGS: token number lease_ms least synced silent_ms report planned_by
--   number: of the term   planned_by: the time by which the leader plans, in epoch ms
--   least: how many entries the leader's configuration holds   synced: stamp of its last sync
--   silent_ms: since the leader's loop last gave a sign of life
-- returns {0} lost
--       | {1, entries, due entries, stamp of the last pause or resumption, due backfills, now_ms,
--         when this clock was found to be set back, or '' if all entries have been rescheduled since}
--       | {2, ...} renewed, but part of the schedule is gone, or a config entry removed
local TOLERANCE = 1000 -- ms by which this clock may be behind the leader's before it counts as set back

if not leads(leader, token, number) then
  return {0}
end
redis.call('HSET', leader, 'report', report)
redis.call('PEXPIRE', leader, lease_ms)
local now = now_ms()
-- Every write keeps the three in step.
local count = redis.call('HLEN', entries)
local whole = count == redis.call('ZCARD', due) and count == redis.call('HLEN', state) and count >= tonumber(least)
-- New runtime entries may hide that config entries are gone. But whoever removes one replaces the stamp, and a fail-over
-- that undoes a write of the sync undoes the stamp, too.
whole = whole and redis.call('HGET', meta, 'synced') == synced
if redis.call('EXISTS', meta) == 1 then -- not made anew: that it is gone has to be noticed
  redis.call('HSET', meta, 'ticked', string.format('%.0f', now - silent_ms))
  if tonumber(planned_by) > now + TOLERANCE then
    redis.call('HSET', meta, 'set_back', string.format('%.0f', now))
  end
end
-- A beat that freezes and loses the lease must not seem less silent than it did while it led.
redis.call('ZADD', beats, string.format('%.0f', now - silent_ms), token)
redis.call('PEXPIRE', beats, 3600000)
local late = redis.call('ZCOUNT', due, '-inf', string.format('%.0f', now))
local backfills = redis.call('ZCOUNT', backfills_due, '-inf', string.format('%.0f', now))
local noted = redis.call('HMGET', meta, 'pauses', 'set_back')
return {whole and 1 or 2, count, late, noted[1] or '', backfills, now, noted[2] or ''}

-- needs now leads
-- Extend the leader's lease, but only for its holder; and have a look at whether the schedule is still whole.
-- KEYS: leader due entries state meta beats backfills_due
-- ARGS: token term lease_ms least silent_ms report
--   least: how many entries the leader's configuration holds
--   silent_ms: since the leader's loop last gave a sign of life
-- returns {0} lost
--       | {1, entries, due, pauses, backfills} renewed; how many are stored and how many are due by now, the stamp of the
--         last pause or resumption, and how many backfills are due
--       | {2, entries, due, pauses, backfills} renewed, but part of the schedule is gone, or a config entry removed
if not leads(leader, token, term) then
  return {0}
end
redis.call('HSET', leader, 'report', report)
redis.call('PEXPIRE', leader, lease_ms)
local now = now_ms()
-- Every write keeps the three in step.
local count = redis.call('HLEN', entries)
local whole = count == redis.call('ZCARD', due) and count == redis.call('HLEN', state) and count >= tonumber(least)
-- Beside runtime entries the number tells nothing of a config entry that was removed by hand; who removed it, does.
local removed = redis.call('HGET', meta, 'removed')
whole = whole and (not removed or removed == '')
if redis.call('EXISTS', meta) == 1 then -- not made anew: that it is gone has to be noticed
  redis.call('HSET', meta, 'ticked', string.format('%.0f', now - silent_ms))
else
  whole = false
end
-- The same sign of life as above, not when the next one is due: one that freezes and loses the lease is judged by this,
-- and must not seem less silent than it did while it led.
redis.call('ZADD', beats, string.format('%.0f', now - silent_ms), token)
redis.call('PEXPIRE', beats, 3600000)
local late = redis.call('ZCOUNT', due, '-inf', string.format('%.0f', now))
local backfills = redis.call('ZCOUNT', backfills_due, '-inf', string.format('%.0f', now))
local pauses = redis.call('HGET', meta, 'pauses')
return {whole and 1 or 2, count, late, pauses or '', backfills}

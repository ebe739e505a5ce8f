-- needs now leads
-- Extend the leader's lease, but only for its holder; and have a look at whether the schedule is still whole.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] meta  KEYS[6] beats  KEYS[7] due of the backfills
-- ARGV[1] token  ARGV[2] term  ARGV[3] lease_ms  ARGV[4] how many entries the leader's configuration holds
-- ARGV[5] ms since the leader's loop last gave a sign of life  ARGV[6] its report, JSON
-- returns {0} lost
--       | {1, entries, due, pauses, backfills} renewed; how many are stored and how many are due by now, the stamp of the
--         last pause or resumption, and how many backfills are due
--       | {2, entries, due, pauses, backfills} renewed, but part of the schedule is gone, or a config entry removed
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
redis.call('HSET', KEYS[1], 'report', ARGV[6])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local now = now_ms()
-- Every write keeps the three in step.
local due, entries, state = redis.call('ZCARD', KEYS[2]), redis.call('HLEN', KEYS[3]), redis.call('HLEN', KEYS[4])
local whole = due == entries and entries == state and entries >= tonumber(ARGV[4])
-- Beside runtime entries the number tells nothing of a config entry that was removed by hand; who removed it, does.
local removed = redis.call('HGET', KEYS[5], 'removed')
whole = whole and (not removed or removed == '')
if redis.call('EXISTS', KEYS[5]) == 1 then -- not made anew: that it is gone has to be noticed
  redis.call('HSET', KEYS[5], 'ticked', string.format('%.0f', now - ARGV[5]))
else
  whole = false
end
-- The same sign of life as above, not when the next one is due: one that freezes and loses the lease is judged by this,
-- and must not seem less silent than it did while it led.
redis.call('ZADD', KEYS[6], string.format('%.0f', now - ARGV[5]), ARGV[1])
redis.call('PEXPIRE', KEYS[6], 3600000)
local late = redis.call('ZCOUNT', KEYS[2], '-inf', string.format('%.0f', now))
local backfills = redis.call('ZCOUNT', KEYS[7], '-inf', string.format('%.0f', now))
local pauses = redis.call('HGET', KEYS[5], 'pauses')
return {whole and 1 or 2, entries, late, pauses or '', backfills}

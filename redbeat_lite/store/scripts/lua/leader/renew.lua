-- needs now leads
-- Extend the leader's lease if this beat holds it, and check that the schedule is still whole.
-- KEYS: leader due entries state meta beats backfills_due
-- ARGS: token number lease_ms least synced silent_ms report planned_by
--   number: of the term   planned_by: time by the leader's clock, in epoch ms
--   least: number of entries in the leader's configuration   synced: stamp of its last sync
--   silent_ms: time since the last sign of life of the leader's loop
-- returns {0} lost
--       | {1, is_whole, entries, due entries, stamp of the last pause or resumption, due backfills,
--         now_ms, when this clock was found to be set back, '' once all entries have been rescheduled}
--         is_whole: 0 if a part of the schedule is gone, or the leader must sync its configuration
--         again; else 1
local TOLERANCE = 1000 -- if this clock is more ms behind the leader's, it was set back

if not leads(leader, token, number) then
  return {0}
end
redis.call('HSET', leader, 'report', report)
redis.call('PEXPIRE', leader, lease_ms)
-- Every write keeps the counts of the three keys equal.
local count = redis.call('HLEN', entries)
local is_whole = count == redis.call('ZCARD', due) and count == redis.call('HLEN', state)
is_whole = is_whole and count >= tonumber(least)
-- If config entries are gone, new runtime entries can make up for them in the count. But a removal
-- replaces the stamp, as other edits of config entries do. And a fail-over that undoes a write of the
-- sync undoes the stamp, too.
is_whole = is_whole and redis.call('HGET', meta, 'synced') == synced
if redis.call('EXISTS', meta) == 1 then -- do not create it, because its loss must be noticed
  redis.call('HSET', meta, 'ticked', string.format('%.0f', now - silent_ms))
  if tonumber(planned_by) > now + TOLERANCE then
    redis.call('HSET', meta, 'set_back', string.format('%.0f', now))
  end
end
-- Store the loop's last sign of life, because the loop can hang while the lease is still renewed.
redis.call('ZADD', beats, string.format('%.0f', now - silent_ms), token)
redis.call('PEXPIRE', beats, 3600000)
local due_entries = redis.call('ZCOUNT', due, '-inf', string.format('%.0f', now))
local due_backfills = redis.call('ZCOUNT', backfills_due, '-inf', string.format('%.0f', now))
local stored = redis.call('HMGET', meta, 'pauses', 'set_back')
return {1, is_whole and 1 or 0, count, due_entries, stored[1] or '', due_backfills, now, stored[2] or ''}

-- needs now
-- Return the state of the beats and of the schedule. It changes nothing.
-- KEYS: leader beats meta due entries quarantine workers pipelines
-- ARGS: overdue_ms
--   workers: their reports   pipelines: runs that have not ended
--   overdue_ms: after its due time from which an entry counts as overdue
-- returns {now_ms, {field, value, ...} of the leader or {}, {beat, since when in ms it is silent, ...},
--          last sign of life of a leader's loop in ms or '', entries, overdue, {name, due time} of the first or {}, quarantined,
--          {worker, its report, ...}, what is refused of the leader's configuration, JSON or '', the last freeze or '',
--          how many runs of pipelines go on}
local now = now_ms()
return {
  now,
  redis.call('HGETALL', leader),
  redis.call('ZRANGE', beats, 0, -1, 'WITHSCORES'),
  redis.call('HGET', meta, 'ticked') or '',
  redis.call('HLEN', entries),
  redis.call('ZCOUNT', due, '-inf', string.format('%.0f', now - overdue_ms)),
  redis.call('ZRANGE', due, 0, 0, 'WITHSCORES'),
  redis.call('HLEN', quarantine),
  redis.call('HGETALL', workers),
  redis.call('HGET', meta, 'refused') or '',
  redis.call('HGET', meta, 'freeze') or '',
  redis.call('ZCARD', pipelines),
}

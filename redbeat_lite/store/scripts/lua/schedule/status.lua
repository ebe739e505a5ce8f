-- needs now
-- Return the state of the beats and of the schedule.
-- KEYS: leader beats meta due entries quarantine workers pipelines
-- ARGS: overdue_ms
--   workers: their reports   pipelines: runs that have not ended
--   overdue_ms: from its due time until an entry counts as overdue
-- returns {now_ms, {field of the leader, value, ...}, {beat, ms since when it is silent, ...},
--   last sign of life of a leader's loop in ms or '', number of entries, of overdue entries,
--   {name, due time} of the first entry or {}, number in quarantine, {worker, report, ...},
--   JSON of refused config entries or '', text of the last freeze or '', number of pipeline runs}
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

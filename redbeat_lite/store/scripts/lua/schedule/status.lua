-- needs now
-- How the beats and the schedule fare; changes nothing.
-- KEYS[1] leader  KEYS[2] beats  KEYS[3] meta  KEYS[4] due  KEYS[5] entries  KEYS[6] quarantine  KEYS[7] reports of workers
-- KEYS[8] runs of pipelines that have not ended
-- ARGV[1] ms after its due time from which an entry counts as overdue
-- returns {now_ms, {field, value, ...} of the leader or {}, {beat, since when in ms it is silent, ...},
--          last sign of life of a leader's loop in ms or '', entries, overdue, {name, due time} of the first or {}, quarantined,
--          {worker, its report, ...}, what is refused of the leader's configuration, JSON or '', the freezes or '',
--          how many runs of pipelines go on}
local now = now_ms()
return {
  now,
  redis.call('HGETALL', KEYS[1]),
  redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES'),
  redis.call('HGET', KEYS[3], 'ticked') or '',
  redis.call('HLEN', KEYS[5]),
  redis.call('ZCOUNT', KEYS[4], '-inf', string.format('%.0f', now - ARGV[1])),
  redis.call('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES'),
  redis.call('HLEN', KEYS[6]),
  redis.call('HGETALL', KEYS[7]),
  redis.call('HGET', KEYS[3], 'refused') or '',
  redis.call('HGET', KEYS[3], 'freezes') or '',
  redis.call('ZCARD', KEYS[8]),
}

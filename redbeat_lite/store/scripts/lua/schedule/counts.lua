-- How many entries each part of the schedule has, all at one moment; changes nothing.
-- KEYS: entries state due
-- returns the three counts
return {
  redis.call('HLEN', entries),
  redis.call('HLEN', state),
  redis.call('ZCARD', due),
}

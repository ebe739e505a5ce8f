-- Count the entries of each part of the schedule, at one moment. It changes nothing.
-- KEYS: entries state due
-- returns the three counts
return {
  redis.call('HLEN', entries),
  redis.call('HLEN', state),
  redis.call('ZCARD', due),
}

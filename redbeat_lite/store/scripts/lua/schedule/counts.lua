-- How many entries each part of the schedule has, all at one moment; changes nothing.
-- KEYS[1] entries  KEYS[2] state  KEYS[3] due
-- returns the three counts
return {
  redis.call('HLEN', KEYS[1]),
  redis.call('HLEN', KEYS[2]),
  redis.call('ZCARD', KEYS[3]),
}

-- Some entries as they are at one moment; changes nothing. At most 1,000, which unpack() can take.
-- KEYS[1] entries  KEYS[2] state  KEYS[3] due   ARGV[1..] names, at least one
-- returns {{definition, ...}, {state, ...}, {score, ...}}, nil for what is not there
return {
  redis.call('HMGET', KEYS[1], unpack(ARGV)),
  redis.call('HMGET', KEYS[2], unpack(ARGV)),
  redis.call('ZMSCORE', KEYS[3], unpack(ARGV)),
}

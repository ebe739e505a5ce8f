-- Some entries as they are at one moment; changes nothing. At most 1,000, which unpack() can take.
-- KEYS: entries state due
-- ARGS: names...
--   names: at least one
-- returns {{definition, ...}, {state, ...}, {score, ...}}, nil for what is not there
return {
  redis.call('HMGET', entries, unpack(names)),
  redis.call('HMGET', state, unpack(names)),
  redis.call('ZMSCORE', due, unpack(names)),
}

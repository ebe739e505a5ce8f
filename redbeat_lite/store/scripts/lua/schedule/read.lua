-- Return entries as they are at one moment. It changes nothing. At most 1,000 of them, because
-- unpack() takes no more than some thousands.
-- KEYS: entries state due
-- ARGS: names...
--   names: at least one
-- returns {{definition, ...}, {state, ...}, {score, ...}}, nil for what is not there
return {
  redis.call('HMGET', entries, unpack(names)),
  redis.call('HMGET', state, unpack(names)),
  redis.call('ZMSCORE', due, unpack(names)),
}

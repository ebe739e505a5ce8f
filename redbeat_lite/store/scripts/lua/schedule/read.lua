-- Return entries as they are at one moment. It changes nothing. At most 1,000 of them, because
-- unpack() takes no more than some thousands.
-- KEYS: entries state due
-- ARGS: names...
--   names: at least one
-- returns {{name, score, ...}, {definition, ...}, {state, ...}}, nil for what is not there
local ranked = {}
for n, score in ipairs(redis.call('ZMSCORE', due, unpack(names))) do
  ranked[2 * n - 1], ranked[2 * n] = names[n], score
end
return {ranked, redis.call('HMGET', entries, unpack(names)), redis.call('HMGET', state, unpack(names))}

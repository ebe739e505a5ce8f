-- For the scripts that read entries: 1,000 at most, because unpack() takes only some thousands.
-- takes names; returns {names, due times, definitions, states}, nil for what is not there
local function parts_of(names)
  if #names == 0 then
    return {names, {}, {}, {}}
  end
  local scores = redis.call('ZMSCORE', due, unpack(names))
  local definitions = redis.call('HMGET', entries, unpack(names))
  return {names, scores, definitions, redis.call('HMGET', state, unpack(names))}
end

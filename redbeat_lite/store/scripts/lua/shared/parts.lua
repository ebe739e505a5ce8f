-- Return {names, due times, definitions, states} of entries; a part that is not stored is nil.
-- Takes 1,000 names at most, because unpack() fails for more than some thousands.
local function parts_of(names)
  if #names == 0 then
    return {names, {}, {}, {}}
  end
  local scores = redis.call('ZMSCORE', due, unpack(names))
  local definitions = redis.call('HMGET', entries, unpack(names))
  return {names, scores, definitions, redis.call('HMGET', state, unpack(names))}
end

-- For the scripts of the pipelines: the record of a step as a table, and back.
local MAX_DEATHS = 5 -- of its workers; a step that kills five workers would kill the sixth

-- A step that was never to be published has no record, and its state is nil.
local function step_at(step)
  local s = cjson.decode(redis.call('HGET', steps, step) or '{}')
  for _, count in ipairs({'round', 'attempt', 'deaths', 'tries'}) do
    s[count] = s[count] or 0
  end
  return s
end

local function put_step(step, s)
  redis.call('HSET', steps, step, cjson.encode(s))
end

-- Return whether a step is in this round and waits (token ''), or is run by the copy with this token.
local function is_at(s, round, token)
  if s.round ~= tonumber(round) then
    return false
  end
  return token == '' and s.state == 'WAITING' or s.state == 'RUNNING' and s.token == token
end

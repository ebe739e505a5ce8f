-- For scripts of pipelines: read and write the record of a step.
local MAX_DEATHS = 5 -- deaths of workers after which a step runs again; at the next death, it fails

-- A step that is not yet to be published has no record, so its state is nil.
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

-- Return whether a step is in this round and waits (token ''), or runs with this token.
local function is_at(s, round, token)
  if s.round ~= tonumber(round) then
    return false
  end
  return token == '' and s.state == 'WAITING' or s.state == 'RUNNING' and s.token == token
end

-- For scripts of pipelines: read and write the record of a step.
local MAX_DEATHS = 5 -- deaths of workers after which a step runs again; at the next death, it fails

-- A step that is not yet to be published has no record, so its state is nil.
local function step_at(step)
  local this_step = cjson.decode(redis.call('HGET', steps, step) or '{}')
  for _, count in ipairs({'round', 'attempt', 'deaths', 'tries'}) do
    this_step[count] = this_step[count] or 0
  end
  return this_step
end

local function put_step(step, this_step)
  redis.call('HSET', steps, step, cjson.encode(this_step))
end

-- Return whether a step is in this round and waits (token ''), or runs with this token.
local function is_at(this_step, round, token)
  local is_in_state = this_step.state == 'RUNNING' and this_step.token == token
  if token == '' then
    is_in_state = this_step.state == 'WAITING'
  end
  return is_in_state and this_step.round == tonumber(round)
end

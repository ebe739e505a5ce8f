-- For the scripts of the pipelines: the record of a step as a table, and back.
local function step_at(step)
  local s = cjson.decode(redis.call('HGET', steps, step) or '{"state":"WAITING"}')
  for _, count in ipairs({'round', 'attempt', 'deaths', 'tries'}) do
    s[count] = s[count] or 0
  end
  return s
end

local function put_step(step, s)
  redis.call('HSET', steps, step, cjson.encode(s))
end

-- Return the ids of the tasks that run in the steps from `first` to `last`.
local function running_tasks(first, last)
  local ids = {}
  for step = first, last do
    local s = step_at(step)
    if s.state == 'RUNNING' then
      ids[#ids + 1] = s.task
    end
  end
  return ids
end

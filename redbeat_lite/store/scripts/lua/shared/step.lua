-- For the scripts of the pipelines: the record of a step as a table, and back. Counts of 0 are not stored.
local counts = {'round', 'attempt', 'deaths', 'tries'}

local function step_at(step)
  local s = cjson.decode(redis.call('HGET', steps, step) or '{"state":"WAITING"}')
  for _, count in ipairs(counts) do
    s[count] = s[count] or 0
  end
  return s
end

local function put_step(step, s)
  for _, count in ipairs(counts) do
    s[count] = s[count] ~= 0 and s[count] or nil
  end
  redis.call('HSET', steps, step, cjson.encode(s))
end

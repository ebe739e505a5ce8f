-- For the scripts of the pipelines: the record of a run, and the steps of its stage.
local KEEP = 7 * 86400000 -- ms for which a run is kept that nobody reads or changes
local REMEMBER = 90 * 86400000 -- ms for which an ended run is known after its record has expired
local FIELDS = {'state', 'stage', 'sizes', 'left', 'most', 'ttl', 'deadline', 'since', 'overlap', 'resumed', 'revoke',
  'revoke_siblings'}

-- Return the fields of the run as a table, with the numbers of the first and the last step of its
-- stage, and the size of the next stage (nil: there is none). A field is false if there is no run.
local function read_run()
  local r = {}
  for n, value in ipairs(redis.call('HMGET', run, unpack(FIELDS))) do
    r[FIELDS[n]] = value
  end
  if not r.state then
    return r
  end
  local sizes = {}
  for size in string.gmatch(r.sizes, '%d+') do
    sizes[#sizes + 1] = tonumber(size)
  end
  r.first = 0
  for n = 1, r.stage do
    r.first = r.first + sizes[n]
  end
  r.last = r.first + sizes[r.stage + 1] - 1
  r.following = sizes[r.stage + 2]
  return r
end

local function expire(ms)
  for _, key in ipairs({run, steps, results}) do
    redis.call('PEXPIRE', key, ms)
  end
end

-- Let a run that has not ended expire if nobody reads or changes it.
local function keep(r)
  expire(math.max(r.ttl, KEEP))
end

local function finish(r, how)
  r.state = how
  redis.call('HSET', run, 'state', how, 'ended', now_ms())
  expire(r.ttl)
  redis.call('SET', gone, how, 'PX', r.ttl + REMEMBER)
end

-- Have steps wait for a worker that were never published: up to `last`, at most `free` of them. They
-- get their records in their order, so the number of records is the number of the next step.
-- returns these steps, for the caller to publish: {step, round, attempt, no token}, ...
local function fill(last, free)
  local filled, step = {}, redis.call('HLEN', steps)
  while step <= last and free > 0 do
    put_step(step, {state = 'WAITING'})
    filled[#filled + 1] = {step, 0, 0, ''}
    step, free = step + 1, free - 1
  end
  return filled
end

-- Begin the next stage; or end the run, if there is none.
-- returns the steps to publish
local function advance(r)
  if not r.following then
    finish(r, 'SUCCEEDED')
    return {}
  end
  redis.call('HSET', run, 'stage', r.stage + 1, 'left', r.following)
  return fill(r.last + r.following, tonumber(r.most))
end

-- Return the steps that are to be published: those that were not, and those that no worker has begun
-- in time, so that their messages must be lost. While the run waits for its turn, there are none.
-- returns {step, round, attempt, no token}, ...
local function due_steps(r)
  local due, now = {}, now_ms()
  if r.state ~= 'RUNNING' then
    return due
  end
  for step = r.first, redis.call('HLEN', steps) - 1 do
    local s = step_at(step)
    if s.state == 'WAITING' and (s.due or 0) <= now then
      due[#due + 1] = {step, s.round, s.attempt, ''}
    end
  end
  return due
end

-- For scripts of pipelines: the record of a run, and the steps of its stage.
local IDLE_LIFE = 7 * 86400000 -- ms after which an unfinished run that nobody touches expires
local STATE_LIFE = 90 * 86400000 -- ms for which the state of an ended run outlives its record
local FIELDS = {'state', 'stage', 'ends', 'left', 'most', 'ttl', 'deadline', 'since', 'resumed', 'revoke',
  'revoke_siblings'}

-- Return the fields of the run, each false if there is no run. Add the numbers of the `first` and
-- `last` step of its stage, and `next_end`: count of steps up to the next stage's end, or nil.
local function read_run()
  local this_run = {}
  for n, value in ipairs(redis.call('HMGET', run, unpack(FIELDS))) do
    this_run[FIELDS[n]] = value
  end
  if this_run.state then
    -- Stages count from 0, so ends[stage] is the end of the stage before.
    local ends, stage = cjson.decode(this_run.ends), tonumber(this_run.stage)
    this_run.first = ends[stage] or 0
    this_run.last = ends[stage + 1] - 1
    this_run.next_end = ends[stage + 2]
  end
  return this_run
end

local function is_live(this_run)
  return this_run.state == 'RUNNING' or this_run.state == 'WAITING'
end

local function expire_keys(ms)
  for _, key in ipairs({run, steps, results}) do
    redis.call('PEXPIRE', key, ms)
  end
end

-- Postpone the expiry of a run that has not ended.
local function postpone_expiry(this_run)
  expire_keys(math.max(this_run.ttl, IDLE_LIFE))
end

local function end_run(this_run, how)
  this_run.state = how
  redis.call('HSET', run, 'state', how, 'ended', now)
  if how == 'FAILED' and this_run.revoke_siblings == '1' then
    this_run.revoke = '1'
    redis.call('HSET', run, 'revoke', 1)
  end
  expire_keys(this_run.ttl)
  redis.call('SET', gone, how, 'PX', this_run.ttl + STATE_LIFE)
end

-- Create records of the next steps, up to number `last` and at most `free`, and return these steps
-- to be published, as check.lua lists them. Records are created in order, so their count is the
-- number of the next step.
local function create_steps(last, free)
  local created = {}
  local next_step = redis.call('HLEN', steps)
  for step = next_step, math.min(last, next_step + free - 1) do
    put_step(step, {state = 'WAITING'})
    created[#created + 1] = {step, 0, 0, '', 0}
  end
  return created
end

-- Begin the next stage, and return its steps to publish. If there is no next stage, end the run.
local function begin_next_stage(this_run)
  if not this_run.next_end then
    end_run(this_run, 'SUCCEEDED')
    return {}
  end
  redis.call('HSET', run, 'stage', this_run.stage + 1, 'left', this_run.next_end - this_run.last - 1)
  return create_steps(this_run.next_end - 1, tonumber(this_run.most))
end

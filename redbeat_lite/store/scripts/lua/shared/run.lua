-- For scripts of pipelines: the record of a run, and the steps of its stage.
local KEEP = 7 * 86400000 -- ms after which an unfinished run that nobody touches expires
local REMEMBER = 90 * 86400000 -- ms for which the state of an ended run outlives its record
local FIELDS = {'state', 'stage', 'ends', 'left', 'most', 'ttl', 'deadline', 'since', 'resumed', 'revoke', 'revoke_siblings'}

-- Return the fields of the run, each false if there is no run. Add the numbers of the `first` and
-- `last` step of its stage, and `next_end`: count of steps up to the next stage's end, or nil.
local function read_run()
  local r = {}
  for n, value in ipairs(redis.call('HMGET', run, unpack(FIELDS))) do
    r[FIELDS[n]] = value
  end
  if r.state then
    local ends, stage = cjson.decode(r.ends), tonumber(r.stage)
    r.first, r.last, r.next_end = ends[stage] or 0, ends[stage + 1] - 1, ends[stage + 2]
  end
  return r
end

local function expire(ms)
  for _, key in ipairs({run, steps, results}) do
    redis.call('PEXPIRE', key, ms)
  end
end

-- Postpone the expiry of a run that has not ended.
local function keep(r)
  expire(math.max(r.ttl, KEEP))
end

local function finish(r, how)
  r.state = how
  redis.call('HSET', run, 'state', how, 'ended', now)
  if how == 'FAILED' and r.revoke_siblings == '1' then
    r.revoke = '1'
    redis.call('HSET', run, 'revoke', 1)
  end
  expire(r.ttl)
  redis.call('SET', gone, how, 'PX', r.ttl + REMEMBER)
end

-- Create records of the next steps, up to number `last` and at most `free`, and return these steps
-- to be published. Records are created in order, so their count is the number of the next step.
local function fill(last, free)
  local added, step = {}, redis.call('HLEN', steps)
  for number = step, math.min(last, step + free - 1) do
    put_step(number, {state = 'WAITING'})
    added[#added + 1] = {number, 0, 0, '', 0}
  end
  return added
end

-- Begin the next stage, and return its steps to publish. If there is no next stage, end the run.
local function advance(r)
  if not r.next_end then
    finish(r, 'SUCCEEDED')
    return {}
  end
  redis.call('HSET', run, 'stage', r.stage + 1, 'left', r.next_end - r.last - 1)
  return fill(r.next_end - 1, tonumber(r.most))
end

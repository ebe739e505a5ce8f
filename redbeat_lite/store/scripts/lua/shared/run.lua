-- For the scripts of the pipelines: the record of a run, and the steps of its stage.
local KEEP = 7 * 86400000 -- ms for which a run is kept that nobody reads or changes
local REMEMBER = 90 * 86400000 -- ms for which an ended run is known after its record has expired
local FIELDS = {'state', 'stage', 'ends', 'left', 'most', 'ttl', 'deadline', 'since', 'resumed', 'revoke', 'revoke_siblings'}

-- Return the fields of the run, each false if there is no run; with the numbers of the first and the
-- last step of its stage, and the count of steps up to the end of the next stage (nil: there is none).
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

-- Let a run that has not ended expire if nobody reads or changes it.
local function keep(r)
  expire(math.max(r.ttl, KEEP))
end

local function finish(r, how)
  r.state = how
  redis.call('HSET', run, 'state', how, 'ended', now_ms())
  if how == 'FAILED' and r.revoke_siblings == '1' then
    r.revoke = '1'
    redis.call('HSET', run, 'revoke', 1)
  end
  expire(r.ttl)
  redis.call('SET', gone, how, 'PX', r.ttl + REMEMBER)
end

-- Have steps wait for a worker that were never published: up to `last`, at most `free` of them. They
-- get their records in their order, so the number of records is the number of the next step.
-- returns these steps, to be published
local function fill(last, free)
  local added, step = {}, redis.call('HLEN', steps)
  for number = step, math.min(last, step + free - 1) do
    put_step(number, {state = 'WAITING'})
    added[#added + 1] = {number, 0, 0, '', 0}
  end
  return added
end

-- Begin the next stage; or end the run, if there is none.
-- returns the steps to publish
local function advance(r)
  if not r.next_end then
    finish(r, 'SUCCEEDED')
    return {}
  end
  redis.call('HSET', run, 'stage', r.stage + 1, 'left', r.next_end - r.last - 1)
  return fill(r.next_end - 1, tonumber(r.most))
end

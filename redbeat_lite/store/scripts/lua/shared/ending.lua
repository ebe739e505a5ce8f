-- For the scripts of the pipelines: the end of a run, and of a stage.
local function finish(how)
  local ttl = redis.call('HGET', run, 'ttl')
  redis.call('HSET', run, 'state', how, 'ended', now_ms())
  redis.call('DEL', outbox)
  keep(ttl)
  redis.call('SET', gone, how, 'PX', tonumber(ttl) + tonumber(remember_ms))
  return how
end

-- returns the state of the run after its next stage has begun, or there is none
local function advance(state)
  local record = redis.call('HMGET', run, 'stage', 'sizes', 'most')
  local first, size, following = steps_of(record[2], tonumber(record[1]))
  if not following then
    return finish('SUCCEEDED')
  end
  first = first + size
  local next = fill(first, first + following - 1, tonumber(record[3]))
  redis.call('HSET', run, 'stage', record[1] + 1, 'left', following, 'next', next, 'filled', now_ms())
  return state
end

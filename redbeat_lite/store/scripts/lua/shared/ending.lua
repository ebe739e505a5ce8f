-- For the scripts of the pipelines: the end of a run, and of a stage.
-- they take the keys of run, steps, results, outbox and gone; `remember` is [7] of pipeline/complete
local function finish(keys, how, remember)
  local ttl = redis.call('HGET', keys[1], 'ttl')
  redis.call('HSET', keys[1], 'state', how, 'ended', now_ms())
  redis.call('DEL', keys[4])
  for i = 1, 3 do
    redis.call('PEXPIRE', keys[i], ttl)
  end
  redis.call('SET', keys[5], how, 'PX', tonumber(ttl) + tonumber(remember))
  return how
end

-- returns the state of the run after its next stage has begun, or there is none
local function advance(keys, state, remember)
  local run = redis.call('HMGET', keys[1], 'stage', 'sizes', 'most')
  local first, size, following = steps_of(run[2], tonumber(run[1]))
  if not following then
    return finish(keys, 'SUCCEEDED', remember)
  end
  first = first + size
  local next = fill(keys[4], first, first + following - 1, tonumber(run[3]))
  redis.call('HSET', keys[1], 'stage', run[1] + 1, 'left', following, 'next', next, 'filled', now_ms())
  return state
end

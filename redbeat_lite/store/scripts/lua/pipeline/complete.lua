-- needs now stage ending step
-- Record how a step ended. After the last step of a stage, begin the next stage or end the run. A
-- second send changes nothing and returns the steps that are still in the outbox.
-- KEYS: run steps results outbox gone
-- ARGS: step round attempt token outcome result remember_ms
--   outcome: SUCCEEDED | FAILED | REVOKED   result: the result or the error
--   remember_ms: for which the end of a run is known after its record has expired
-- returns {word, state of the run, outbox: step, round.attempt, ..., ids of running tasks to revoke}
--   done | again: it was recorded before | stale: it is of another copy, round or attempt
--   | gone: there is no such run
local record = redis.call('HMGET', run, 'state', 'stage', 'left', 'sizes', 'next', 'keep', 'revoke_siblings')
local state = record[1]
if not state then
  return {'gone', '', {}, {}}
end
local s = step_at(step)
local waiting = s.state == 'WAITING'
if s.round ~= tonumber(round) or not waiting and s.token ~= token then
  return {'stale', state, {}, {}}
end
-- Return the steps to publish. While the run waits for its turn, there are none.
local function published()
  return state == 'RUNNING' and redis.call('HGETALL', outbox) or {}
end
if not waiting and s.state ~= 'RUNNING' then
  return {'again', state, published(), {}}
end
-- A waiting step has no token. It was revoked, has expired or was killed before it began, and may
-- wait for its retry.
if waiting and (outcome == 'SUCCEEDED' or s.attempt ~= tonumber(attempt)) then
  return {'stale', state, {}, {}}
end

local live, ended = state == 'RUNNING' or state == 'WAITING', outcome
if outcome == 'REVOKED' then
  -- A step that was revoked because the run has ended has not failed.
  ended = live and 'FAILED' or 'ABORTED'
end
s.state, s.ended, s.token = ended, now_ms(), token
s.due, s.suspect, s.again, s.beat = nil, nil, nil, nil
s.error = ended ~= 'SUCCEEDED' and result or nil
put_step(step, s)
redis.call('HDEL', outbox, step)
if ended == 'SUCCEEDED' then
  redis.call('HSET', results, step, result)
end
if not live then
  keep(math.max(redis.call('PTTL', run), 1))
  return {'done', state, {}, {}}
end

local first, size = steps_of(record[4], tonumber(record[2]))
local last = first + size - 1
if ended ~= 'SUCCEEDED' then
  redis.call('HSET', run, 'error_step', step, 'error', result)
  local revoke = record[7] == '1' and running_tasks(first, last) or {}
  if #revoke > 0 then
    -- The caller revokes them. If it dies before, the sweeper does.
    redis.call('HSET', run, 'revoke', 1)
  end
  return {'done', finish('FAILED'), {}, revoke}
end

local left, sending = tonumber(record[3]) - 1, {}
redis.call('HSET', run, 'left', left)
if left == 0 then
  state = advance(state)
  sending = published()
elseif tonumber(record[5]) <= last then
  -- One step has ended, so one more may run.
  redis.call('HSET', run, 'next', fill(tonumber(record[5]), last, 1))
  sending = state == 'RUNNING' and {record[5], '0.0'} or {}
end
if state ~= 'SUCCEEDED' then
  keep(record[6])
end
return {'done', state, sending, {}}

-- needs now stage ending step
-- Record how a step ended; with the last one of a stage, advance the stage and fill the outbox, or end the run.
-- Sent twice, the second changes nothing and answers with what is still in the outbox.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] step  [2] round  [3] attempt  [4] token  [5] SUCCEEDED | FAILED | REVOKED  [6] result or error
--     [7] ms for which it is known after its record is gone that there was such a run
-- returns {word, state of the run, outbox: step, round.attempt, ..., ids of running tasks to revoke}
--   done | again it was recorded before | stale another copy's, round's or attempt's | gone there is no such run
local run = redis.call('HMGET', KEYS[1], 'state', 'stage', 'left', 'sizes', 'next', 'keep', 'revoke_siblings')
local state = run[1]
if not state then
  return {'gone', '', {}, {}}
end
local step, outcome = ARGV[1], ARGV[5]
local s = step_at(KEYS[2], step)
local waiting = s.state == 'WAITING'
if s.round ~= tonumber(ARGV[2]) or not waiting and s.token ~= ARGV[4] then
  return {'stale', state, {}, {}}
end
-- What is to be published now: nothing while the run waits for its turn.
local function published()
  return state == 'RUNNING' and redis.call('HGETALL', KEYS[4]) or {}
end
if not waiting and s.state ~= 'RUNNING' then
  return {'again', state, published(), {}}
end
-- A step that waits has no token: revoked, expired, or killed before it began. It may be waiting for its retry.
if waiting and (outcome == 'SUCCEEDED' or s.attempt ~= tonumber(ARGV[3])) then
  return {'stale', state, {}, {}}
end

local live, ended = state == 'RUNNING' or state == 'WAITING', outcome
if outcome == 'REVOKED' then
  -- Revoked because the run has ended is no failure of its own.
  ended = live and 'FAILED' or 'ABORTED'
end
s.state, s.ended, s.token = ended, now_ms(), ARGV[4]
s.due, s.suspect, s.again, s.beat = nil, nil, nil, nil
s.error = ended ~= 'SUCCEEDED' and ARGV[6] or nil
put_step(KEYS[2], step, s)
redis.call('HDEL', KEYS[4], step)
if ended == 'SUCCEEDED' then
  redis.call('HSET', KEYS[3], step, ARGV[6])
end
if not live then
  for i = 2, 3 do
    redis.call('PEXPIRE', KEYS[i], math.max(redis.call('PTTL', KEYS[1]), 1))
  end
  return {'done', state, {}, {}}
end

local first, size = steps_of(run[4], tonumber(run[2]))
local last = first + size - 1
if ended ~= 'SUCCEEDED' then
  redis.call('HSET', KEYS[1], 'error_step', step, 'error', ARGV[6])
  local revoke = {}
  for other = first, run[7] == '1' and last or -1 do
    local o = step_at(KEYS[2], other)
    if o.state == 'RUNNING' then
      revoke[#revoke + 1] = o.task
    end
  end
  if #revoke > 0 then
    -- Until the caller has revoked them: should it die before, the sweeper does.
    redis.call('HSET', KEYS[1], 'revoke', 1)
  end
  return {'done', finish(KEYS, 'FAILED', ARGV[7]), {}, revoke}
end

local left, outbox = tonumber(run[3]) - 1, {}
redis.call('HSET', KEYS[1], 'left', left)
if left == 0 then
  state = advance(KEYS, state, ARGV[7])
  outbox = published()
elseif tonumber(run[5]) <= last then
  -- One has ended, so one more may run.
  redis.call('HSET', KEYS[1], 'next', fill(KEYS[4], tonumber(run[5]), last, 1))
  outbox = state == 'RUNNING' and {run[5], '0.0'} or {}
end
for i = 1, state ~= 'SUCCEEDED' and 4 or 0 do
  redis.call('PEXPIRE', KEYS[i], run[6])
end
return {'done', state, outbox, {}}

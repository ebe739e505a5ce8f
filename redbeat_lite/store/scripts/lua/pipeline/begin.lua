-- needs now stage step
-- Decide whether a step may run. The guard has made sure that no other copy of its message runs.
-- KEYS: run steps results outbox gone
-- ARGS: step stage round attempt token id again worker deaths renew_ms
--   again: 1: the step may run again after its worker died   deaths: that a step may survive
--   renew_ms: between two signs of life of the step
-- returns {word, text}
--   run, params   the step runs now
--   over, state   the run has ended
--   stale         the message is of another round or stage
--   done, state   the step has ended
--   gone          there is no such run
--   dead          the worker of the step died too often; the caller completes it as FAILED
--   lost, token   the copy with this token died and no other copy may run; the caller completes the
--                 step as FAILED for that copy
local record = redis.call('HMGET', run, 'state', 'stage', 'keep')
if not record[1] then
  return {'gone', ''}
end
if record[1] ~= 'RUNNING' then
  return {'over', record[1]}
end
local s, number = step_at(step), tonumber(attempt)
if record[2] ~= stage or s.round ~= tonumber(round) then
  return {'stale', ''}
end
if s.state ~= 'WAITING' and s.state ~= 'RUNNING' then
  return {'done', s.state}
end
if number < s.attempt then
  return {'stale', ''}
end
if s.state == 'RUNNING' and s.token ~= token and s.attempt == number then
  -- The same attempt began before and did not end: its worker died.
  if again ~= '1' then
    return {'lost', s.token}
  end
  s.deaths = s.deaths + 1
end
s.state, s.attempt, s.token, s.task = 'RUNNING', number, token, id
s.again, s.worker, s.beat = again, worker, tonumber(renew_ms)
s.started = s.started or now_ms()
s.suspect, s.due, s.percent, s.note = nil, nil, nil, nil
put_step(step, s)
redis.call('HDEL', outbox, step)
keep(record[3])
if (s.deaths or 0) > tonumber(deaths) then
  return {'dead', tostring(s.deaths)}
end
return {'run', redis.call('HGET', results, 'stage:' .. stage) or ''}

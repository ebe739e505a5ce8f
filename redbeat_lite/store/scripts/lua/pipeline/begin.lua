-- needs now step
-- May this step run? The guard has made sure that no other copy of its message does.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] step  [2] stage  [3] round  [4] attempt  [5] token  [6] task id  [7] 1: may run again after its worker died
--     [8] worker  [9] deaths of its worker that a step may survive  [10] ms between two signs of its life
-- returns {word, text}
--   run, params   go ahead                     over, state   the run has ended
--   stale         another round is the valid one, or another stage
--   done, state   this step has ended          gone          there is no such run
--   dead          its worker died too often; to be completed as FAILED
--   lost, token   the copy with this token began and did not end, and no other may run; to be completed as FAILED for it
local run = redis.call('HMGET', KEYS[1], 'state', 'stage', 'keep')
if not run[1] then
  return {'gone', ''}
end
if run[1] ~= 'RUNNING' then
  return {'over', run[1]}
end
local step = ARGV[1]
local s, attempt = step_at(KEYS[2], step), tonumber(ARGV[4])
if run[2] ~= ARGV[2] or s.round ~= tonumber(ARGV[3]) then
  return {'stale', ''}
end
if s.state ~= 'WAITING' and s.state ~= 'RUNNING' then
  return {'done', s.state}
end
if attempt < s.attempt then
  return {'stale', ''}
end
if s.state == 'RUNNING' and s.token ~= ARGV[5] and s.attempt == attempt then
  -- The same attempt began before and did not end: its worker died.
  if ARGV[7] ~= '1' then
    return {'lost', s.token}
  end
  s.deaths = s.deaths + 1
end
s.state, s.attempt, s.token, s.task = 'RUNNING', attempt, ARGV[5], ARGV[6]
s.again, s.worker, s.beat = ARGV[7], ARGV[8], tonumber(ARGV[10])
s.started = s.started or now_ms()
s.suspect, s.due, s.percent, s.note = nil, nil, nil, nil
put_step(KEYS[2], step, s)
redis.call('HDEL', KEYS[4], step)
for i = 1, 3 do
  redis.call('PEXPIRE', KEYS[i], run[3])
end
if (s.deaths or 0) > tonumber(ARGV[9]) then
  return {'dead', tostring(s.deaths)}
end
return {'run', redis.call('HGET', KEYS[3], 'stage:' .. ARGV[2]) or ''}

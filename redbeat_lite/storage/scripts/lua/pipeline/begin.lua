-- needs now
-- May this step run? The guard has made sure that no other copy of its message does.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox
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
local s = redis.call('HMGET', KEYS[2], step .. ':state', step .. ':round', step .. ':token', step .. ':attempt',
  step .. ':deaths')
if run[2] ~= ARGV[2] or (s[2] or '0') ~= ARGV[3] then
  return {'stale', ''}
end
if s[1] and s[1] ~= 'WAITING' and s[1] ~= 'RUNNING' then
  return {'done', s[1]}
end
if tonumber(ARGV[4]) < tonumber(s[4] or '0') then
  return {'stale', ''}
end
local now = now_ms()
local deaths = tonumber(s[5] or '0')
if s[1] == 'RUNNING' and s[3] ~= ARGV[5] and s[4] == ARGV[4] then
  -- The same attempt began before and did not end: its worker died.
  if ARGV[7] ~= '1' then
    return {'lost', s[3]}
  end
  deaths = deaths + 1
end
redis.call('HSET', KEYS[2], step .. ':state', 'RUNNING', step .. ':round', ARGV[3], step .. ':attempt', ARGV[4],
  step .. ':token', ARGV[5], step .. ':task', ARGV[6], step .. ':again', ARGV[7], step .. ':worker', ARGV[8],
  step .. ':deaths', deaths, step .. ':beat', ARGV[10])
redis.call('HSETNX', KEYS[2], step .. ':started', now)
redis.call('HDEL', KEYS[2], step .. ':suspect', step .. ':due')
redis.call('HDEL', KEYS[4], step)
for i = 1, 3 do
  redis.call('PEXPIRE', KEYS[i], run[3])
end
if deaths > tonumber(ARGV[9]) then
  return {'dead', tostring(deaths)}
end
return {'run', redis.call('HGET', KEYS[3], 'stage:' .. ARGV[2]) or ''}

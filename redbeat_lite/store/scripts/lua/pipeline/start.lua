-- needs now stage
-- Create a run and put its first stage into the outbox. A run that exists already is left as it is.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] definition  [2] sizes of the stages, "1,2,1"  [3] params  [4] ttl_ms after the end  [5] keep_ms without a sign
--     of life  [6] revoke_siblings, 1 or 0  [7] most steps at once  [8] deadline_ms, '': none
--     [9] entry that starts it, ''  [10] by which attempt, ''  [11] 1: it waits for its turn among the runs of that
-- returns {run | wait for its turn | again | gone, outbox: step, round.attempt, ...}
if redis.call('EXISTS', KEYS[1]) == 1 then
  local waits = redis.call('HGET', KEYS[1], 'state') == 'WAITING'
  return {waits and 'wait' or 'again', waits and {} or redis.call('HGETALL', KEYS[4])}
end
if redis.call('EXISTS', KEYS[5]) == 1 then
  return {'gone', {}}
end
local now = now_ms()
local _, size = steps_of(ARGV[2], 0)
redis.call('HSET', KEYS[1], 'definition', ARGV[1], 'sizes', ARGV[2], 'ttl', ARGV[4], 'keep', ARGV[5],
  'revoke_siblings', ARGV[6], 'most', ARGV[7], 'deadline', ARGV[8], 'state', 'RUNNING', 'stage', 0, 'left', size,
  'next', fill(KEYS[4], 0, size - 1, tonumber(ARGV[7])), 'created', now, 'filled', now, 'since', now)
redis.call('HSET', KEYS[3], 'stage:0', ARGV[3])
for i = 1, 4 do
  redis.call('PEXPIRE', KEYS[i], ARGV[5])
end
if ARGV[9] ~= '' then
  redis.call('HSET', KEYS[1], 'entry', ARGV[9], 'attempt', ARGV[10], 'waits', ARGV[11])
end
if ARGV[11] == '1' then
  redis.call('HSET', KEYS[1], 'state', 'WAITING')
  return {'wait', {}}
end
return {'run', redis.call('HGETALL', KEYS[4])}

-- needs now stage
-- Create a run, and put its first stage into the outbox. An existing run is left unchanged.
-- KEYS: run steps results outbox gone
-- ARGS: definition sizes params ttl_ms keep_ms revoke_siblings most deadline_ms entry attempt waits
-- ARGS: until_ms
--   sizes: of the stages, "1,2,1"   most: steps at once   deadline_ms: '': none
--   ttl_ms: for which the run is kept after its end   keep_ms: without a sign of life
--   revoke_siblings: 1 or 0   entry, attempt: that start the run, or ''
--   waits: 1: the run waits for its turn among the runs of its entry
--   until_ms: when the sweeper looks for the run, and forgets it if it does not exist
-- returns {run | wait | again | gone | late, outbox: step, round.attempt, ...}
if redis.call('EXISTS', run) == 1 then
  local is_waiting = redis.call('HGET', run, 'state') == 'WAITING'
  return {is_waiting and 'wait' or 'again', is_waiting and {} or redis.call('HGETALL', outbox)}
end
if redis.call('EXISTS', gone) == 1 then
  return {'gone', {}}
end
local now = now_ms()
if now >= tonumber(until_ms) then
  -- The client gave up, a sweeper forgot the run, and then this call arrived. Nobody would publish
  -- the steps of a run that the index does not hold.
  return {'late', {}}
end
local _, size = steps_of(sizes, 0)
redis.call('HSET', run, 'definition', definition, 'sizes', sizes, 'ttl', ttl_ms, 'keep', keep_ms,
  'revoke_siblings', revoke_siblings, 'most', most, 'deadline', deadline_ms, 'state', 'RUNNING', 'stage', 0, 'left', size,
  'next', fill(0, size - 1, tonumber(most)), 'created', now, 'filled', now, 'since', now)
redis.call('HSET', results, 'stage:0', params)
keep(keep_ms)
if entry ~= '' then
  redis.call('HSET', run, 'entry', entry, 'attempt', attempt, 'waits', waits)
end
if waits == '1' then
  redis.call('HSET', run, 'state', 'WAITING')
  return {'wait', {}}
end
return {'run', redis.call('HGETALL', outbox)}

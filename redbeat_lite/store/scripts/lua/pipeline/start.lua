-- needs now step run
-- Create a run that waits for its turn, with its first steps. An existing run is left unchanged.
-- KEYS: run steps results gone
-- ARGS: definition ends params ttl_ms revoke_siblings most deadline_ms entry attempt overlap until_ms
--   ends: JSON of the counts of steps up to the end of each stage, [1,3,4]   most: steps at once
--   ttl_ms: for which the run is kept after its end   revoke_siblings: 1 or 0   deadline_ms: '': none
--   entry, attempt: that start the run, or ''
--   overlap: allow | skip | wait: for runs of one entry
--   until_ms: when the sweeper looks for the run, and forgets it if it does not exist
-- returns the state of the run | gone | late
local state = redis.call('HGET', run, 'state')
if state then
  return state
end
if redis.call('EXISTS', gone) == 1 then
  return 'gone'
end
local now = now_ms()
if now >= tonumber(until_ms) then
  -- The client gave up, a sweeper forgot the run, and then this call arrived. Nobody would publish
  -- its steps.
  return 'late'
end
redis.call('HSET', run, 'definition', definition, 'ends', ends, 'ttl', ttl_ms, 'revoke_siblings', revoke_siblings,
  'most', most, 'deadline', deadline_ms, 'entry', entry, 'attempt', attempt, 'overlap', overlap, 'state', 'WAITING',
  'stage', 0, 'created', now, 'since', now)
redis.call('HSET', results, 'stage:0', params)
local r = read_run()
redis.call('HSET', run, 'left', r.last + 1)
fill(r.last, tonumber(most))
keep(r)
return r.state

-- needs now step run
-- Create a run that waits for its turn, with its first steps. An existing run is left unchanged.
-- KEYS: run steps results gone
-- ARGS: definition ends params ttl_ms revoke_siblings most deadline_ms
-- ARGS: entry attempt overlap until_ms
--   ends: JSON of the count of steps up to the end of each stage, [1,3,4]
--   most: most steps at once   ttl_ms: time to keep the run after its end   deadline_ms: '': none
--   revoke_siblings: 1 or 0   entry, attempt: entry and attempt that start the run, or ''
--   overlap: allow | skip | wait, for runs of one entry
--   until_ms: when the sweeper looks for the run, and forgets it if it does not exist
-- returns the state of the run | gone | late
local state = redis.call('HGET', run, 'state')
if state then
  return state
end
if redis.call('EXISTS', gone) == 1 then
  return 'gone'
end
if now >= tonumber(until_ms) then
  -- The sweeper has looked for the run before this call, so nobody would publish its steps.
  return 'late'
end
redis.call('HSET', run, 'definition', definition, 'ends', ends, 'ttl', ttl_ms, 'revoke_siblings', revoke_siblings,
  'most', most, 'deadline', deadline_ms, 'entry', entry, 'attempt', attempt, 'overlap', overlap, 'state', 'WAITING',
  'stage', 0, 'created', now, 'since', now)
redis.call('HSET', results, 'stage:0', params)
local this_run = read_run()
redis.call('HSET', run, 'left', this_run.last + 1)
create_steps(this_run.last, tonumber(most))
postpone_expiry(this_run)
return this_run.state

-- needs change
-- Forget an entry that is in quarantine.
-- KEYS[1] quarantine  KEYS[2] record of changes  KEYS[3] last changes
-- KEYS[4] the reply of this call, for a minute: who sends it again is told that it was there
-- ARGV[1] name  ARGV[2] change, for the record
-- returns 1 it was there | 0 it was not
if redis.call('EXISTS', KEYS[4]) == 1 then
  return 1
end
local done = redis.call('HDEL', KEYS[1], ARGV[1])
if done == 1 then
  redis.call('SET', KEYS[4], '1', 'PX', 60000)
  note_change(KEYS[2], KEYS[3], ARGV[2], nil, {ARGV[1]})
end
return done

-- needs change
-- Forget an entry that is in quarantine.
-- KEYS[1] quarantine  KEYS[2] record of changes  KEYS[3] last changes
-- ARGV[1] name  ARGV[2..4] its line in the record
-- returns 1 it was there | 0 it was not
local done = redis.call('HDEL', KEYS[1], ARGV[1])
if done == 1 then
  note_change(KEYS[2], KEYS[3], {ARGV[2], ARGV[3], ARGV[4]}, {ARGV[1]})
end
return done

-- needs change
-- Store the freezes, if they are still as they were read, and wake the beat.
-- KEYS[1] meta  KEYS[2] record of changes
-- ARGV[1] what was read, '' for none  ARGV[2] what to store  ARGV[3] wake channel
-- ARGV[4] change for the record, '' for none  ARGV[5] its fields, JSON
-- returns 1 stored, also where it was before | 0 it was another
local found = redis.call('HGET', KEYS[1], 'freezes') or ''
if found == ARGV[1] then
  redis.call('HSET', KEYS[1], 'freezes', ARGV[2])
  if ARGV[4] ~= '' then
    note_change(KEYS[2], '', ARGV[4], ARGV[5], {})
  end
  redis.call('PUBLISH', ARGV[3], 'freezes')
end
return (found == ARGV[1] or found == ARGV[2]) and 1 or 0

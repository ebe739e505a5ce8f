-- needs change
-- Store the freezes, if they are still as they were read, and wake the beat.
-- KEYS[1] meta  KEYS[2] record of changes
-- ARGV[1] what was read, '' for none  ARGV[2] what to store  ARGV[3] wake channel
-- ARGV[4] change for the record, '' for none  ARGV[5] its fields, JSON  ARGV[6] format of this process
-- returns {1} stored, also where it was before | {0} it was another | {-1, format} the schedule has another format
local before = redis.call('HMGET', KEYS[1], 'format', 'freezes')
local stored, found = tonumber(before[1] or ''), before[2] or ''
if stored and stored ~= tonumber(ARGV[6]) then
  return {-1, stored}
end
if found == ARGV[1] then
  redis.call('HSET', KEYS[1], 'freezes', ARGV[2], 'format', ARGV[6])
  if ARGV[4] ~= '' then
    note_change(KEYS[2], '', ARGV[4], ARGV[5], {})
  end
  redis.call('PUBLISH', ARGV[3], 'freezes')
end
return {(found == ARGV[1] or found == ARGV[2]) and 1 or 0}

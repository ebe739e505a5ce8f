-- Store a calendar, if it is still as it was read.
-- KEYS[1] calendars   ARGV[1] name  ARGV[2] what was read, '' for none  ARGV[3] what to store
-- returns 1 stored, also where it was before | 0 it was another
local found = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if found ~= ARGV[2] and found ~= ARGV[3] then
  return 0
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1

-- needs change
-- Store the freezes, if they are still as they were read, and wake the beat. Who does not know them leads no more.
-- KEYS[1] meta  KEYS[2] record of changes  KEYS[3] leader
-- ARGV[1] what was read, '' for none  ARGV[2] what to store  ARGV[3] wake channel
-- ARGV[4] change for the record, '' for none  ARGV[5] its fields, JSON  ARGV[6] format of a schedule with freezes
-- returns 1 stored, also where it was before | 0 it was another | -1 who leads does not know them
local leads = redis.call('HMGET', KEYS[3], 'token', 'format')
if leads[1] and (tonumber(leads[2] or '') or 1) < tonumber(ARGV[6]) then
  return -1
end
local found = redis.call('HGET', KEYS[1], 'freezes') or ''
if found == ARGV[1] then
  local format = tonumber(redis.call('HGET', KEYS[1], 'format') or 1) or 1
  redis.call('HSET', KEYS[1], 'freezes', ARGV[2], 'format', math.max(format, ARGV[6]))
  if ARGV[4] ~= '' then
    note_change(KEYS[2], '', ARGV[4], ARGV[5], {})
  end
  redis.call('PUBLISH', ARGV[3], 'freezes')
end
return (found == ARGV[1] or found == ARGV[2]) and 1 or 0

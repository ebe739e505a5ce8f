-- needs leads change
-- Remove those of the schedule's keys that are of a foreign type, if this term still runs.
-- KEYS[1] leader  KEYS[2] record of changes  KEYS[2..] keys to look at
-- ARGV[1] token  ARGV[2] term  ARGV[3] change, for the record  ARGV[4..] the type that each of these should be
-- returns {0} this term is over | {1, type, ...} what each key was; 'none' where there was none
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
local found, gone = {1}, {}
for i = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= ARGV[i + 2] then
    redis.call('DEL', KEYS[i])
    gone[#gone + 1] = KEYS[i]
  end
  found[#found + 1] = kind
end
if #gone > 0 then
  note_change(KEYS[2], '', ARGV[3], nil, gone)
end
return found

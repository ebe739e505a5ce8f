-- needs leads change
-- Set aside entries that cannot be read or planned, if this term still runs and they were not mended meanwhile.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] quarantine
-- KEYS[6] record of changes  KEYS[7] last changes
-- ARGV[1] token  ARGV[2] term  ARGV[3] change, for the record
-- then for each entry: name, definition as read or '', state as read or '', record
-- returns {0} this term is over
--       | {1, done, ...} per entry: 1 set aside, also if an earlier send of this call did so, 0 it is another by now
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
local due, entries, state, quarantine = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local results, gone = {1}, {}

local function unchanged(key, name, seen)
  return (redis.call('HGET', key, name) or '') == seen
end

for i = 4, #ARGV, 4 do
  local name = ARGV[i]
  local record = ARGV[i + 3]
  local same = unchanged(entries, name, ARGV[i + 1]) and unchanged(state, name, ARGV[i + 2])
  if same then
    redis.call('HSET', quarantine, name, record)
    redis.call('ZREM', due, name)
    redis.call('HDEL', entries, name)
    redis.call('HDEL', state, name)
    gone[#gone + 1] = name
  end
  results[#results + 1] = (same or redis.call('HGET', quarantine, name) == record) and 1 or 0
end
if #gone > 0 then
  note_change(KEYS[6], KEYS[7], ARGV[3], nil, gone)
end
return results

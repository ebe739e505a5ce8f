-- needs chunks leads
-- Create, edit and remove entries, each only if its state is still what the writer read.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state  KEYS[4] quarantine  KEYS[5] meta  KEYS[6] leader
-- KEYS[7] the reply of this call: it is kept for a minute, and who lost it and sends the call again is given the same
-- ARGV[1] wake channel  ARGV[2] format this process understands
-- ARGV[3] token  ARGV[4] term of the leader that writes, '' for anybody else
-- ARGV[5] bytes at which a state is cut for who reads it; then for each entry:
--   name, state expected or '' for none, new state or '' to remove it, definition or '' to keep it, due time;
--   with a removal in the place of the definition anything but '': it belongs to a configuration, the leader is told
-- returns {0} this term is over, nothing was written
--       | {-1, format} a newer process has been here, nothing was written
--       | {1, done} for each entry one character: '1' written, '0' the state was another
local due, entries, state, quarantine, meta, leader, kept = unpack(KEYS)
local before = redis.call('GET', kept)
if before then
  return {1, before}
end
if ARGV[3] ~= '' and not leads(leader, ARGV[3], ARGV[4]) then
  return {0}
end
local stored = tonumber(redis.call('HGET', meta, 'format') or ARGV[2])
if stored and stored > tonumber(ARGV[2]) then
  return {-1, stored}
end
redis.call('HSET', meta, 'format', ARGV[2])

local most = tonumber(ARGV[5])
local names, found = {}, {}
for i = 6, #ARGV, 5 do
  names[#names + 1] = ARGV[i]
end
for n = 1, #names, CHUNK do
  for _, value in ipairs(redis.call('HMGET', state, unpack(names, n, math.min(n + CHUNK - 1, #names)))) do
    found[#found + 1] = value
  end
end

local function head()
  return tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or 'inf')
end

-- Garbage of any length is shown cut, and must still be removable by who has seen it so.
local function is_as_read(current, expected)
  return current == expected or (#expected == most and string.sub(current, 1, most) == expected)
end

local changed, touched, states, scores, definitions, gone = {}, {}, {}, {}, {}, {}

local function write_all()
  if redis.call('EXISTS', quarantine) == 1 then
    for name in pairs(touched) do
      redis.call('HDEL', quarantine, name)
    end
  end
  write('HSET', state, states)
  write('ZADD', due, scores)
  write('HSET', entries, definitions)
  write('HDEL', state, gone)
  write('HDEL', entries, gone)
  write('ZREM', due, gone)
  touched, states, scores, definitions, gone = {}, {}, {}, {}, {}
end

local was, done = head(), {}
for n, name in ipairs(names) do
  local at = 1 + 5 * n
  local expected, after, definition, score = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if touched[name] then
    write_all()
  end
  if changed[name] then -- by an earlier edit of this call
    found[n] = redis.call('HGET', state, name)
  end
  if is_as_read(found[n] or '', expected) then
    changed[name], touched[name], done[n] = true, true, '1'
    if after == '' then
      gone[#gone + 1] = name
      if definition ~= '' then
        redis.call('HSET', meta, 'removed', '1')
      end
    else
      states[#states + 1], states[#states + 2] = name, after
      scores[#scores + 1], scores[#scores + 2] = score, name
      if definition ~= '' then
        definitions[#definitions + 1], definitions[#definitions + 2] = name, definition
      end
    end
  else
    done[n] = '0'
  end
end
write_all()
done = table.concat(done)
redis.call('SET', kept, done, 'PX', 60000)
if head() < was then
  redis.call('PUBLISH', ARGV[1], 'head')
end
return {1, done}

-- needs chunks
-- Create, edit and remove entries, each only if its state is still what the writer read.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state  KEYS[4] quarantine  KEYS[5] meta  KEYS[6] leader
-- ARGV[1] wake channel  ARGV[2] format this process understands
-- ARGV[3] token  ARGV[4] term of the leader that writes, '' for anybody else
-- ARGV[5] id of this call; then for each entry:
--   name, state expected or '' for none, new state or '' to remove it, definition or '' to keep it, due time;
--   with a removal in the place of the definition anything but '': it belongs to a configuration, the leader is told
-- returns {0} this term is over, nothing was written
--       | {-1, format} a newer process has been here, nothing was written
--       | {1, done, ...} per entry: 1 written (now, or by an earlier try of the same call), 0 the state was another
local due, entries, state, quarantine, meta, leader = unpack(KEYS)
if ARGV[3] ~= '' then
  local held = redis.call('HMGET', leader, 'token', 'term')
  if held[1] ~= ARGV[3] or held[2] ~= ARGV[4] then
    return {0}
  end
end
local stored = tonumber(redis.call('HGET', meta, 'format') or ARGV[2])
if stored and stored > tonumber(ARGV[2]) then
  return {-1, stored}
end
redis.call('HSET', meta, 'format', ARGV[2])

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
  if #gone > 0 then
    redis.call('HSET', meta, 'removal', ARGV[5])
  end
  touched, states, scores, definitions, gone = {}, {}, {}, {}, {}
end

local was, results = head(), {1}
for n, name in ipairs(names) do
  local at = 1 + 5 * n
  local expected, after, definition, score = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if touched[name] then
    write_all()
  end
  if changed[name] then -- by an earlier edit of this call
    found[n] = redis.call('HGET', state, name)
  end
  local current = found[n] or ''
  -- A client that lost the reply sends the same again. The state alone would not tell: two writers who read the same
  -- version arrive at the same next state with different definitions. Of a removal nothing is left to tell by but the
  -- id of the last one; a client tries again at once, so hardly ever is another in between.
  local done = current == after
  if after == '' then
    done = done and expected ~= '' and redis.call('HGET', meta, 'removal') == ARGV[5]
  elseif definition ~= '' then
    done = done and redis.call('HGET', entries, name) == definition
  end
  if not done and current == expected then
    done, changed[name], touched[name] = true, true, true
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
  end
  results[n + 1] = done and 1 or 0
end
write_all()
if head() < was then
  redis.call('PUBLISH', ARGV[1], 'head')
end
return results

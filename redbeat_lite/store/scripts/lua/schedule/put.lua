-- needs leads change
-- Create, edit and remove entries, each only if its state is still what the writer read.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state  KEYS[4] quarantine  KEYS[5] meta  KEYS[6] leader
-- KEYS[7] record of changes  KEYS[8] last changes
-- KEYS[9] the reply of this call: it is kept for a minute, and who lost it and sends the call again is given the same
-- ARGV[1] wake channel  ARGV[2] format of this process
-- ARGV[3] token  ARGV[4] term of the leader that writes, '' for anybody else
-- ARGV[5] for each entry a byte: the number of its line in the record, 0 for none
-- ARGV[6] number of these lines, then of each the change and its fields; then for each entry:
--   name, state expected or '' for none, new state or '' to remove it, definition or '' to keep it, due time;
--   with a removal in the place of the definition anything but '': it belongs to a configuration, the leader is told
-- returns {0} this term is over, nothing was written
--       | {-1, format} the schedule has another format, nothing was written
--       | {1, done} for each entry one character: '1' written, '0' the state was another
local due, entries, state, quarantine, meta, leader, changes, last, kept = unpack(KEYS)
local before = redis.call('GET', kept)
if before then
  return {1, before}
end
if ARGV[3] ~= '' and not leads(leader, ARGV[3], ARGV[4]) then
  return {0}
end
local stored = tonumber(redis.call('HGET', meta, 'format') or '')
if stored and stored ~= tonumber(ARGV[2]) then
  return {-1, stored}
end
-- If another program uses one of these keys, this fails before anything is written.
for _, hash in ipairs({entries, quarantine, last}) do
  redis.call('HLEN', hash)
end
redis.call('HSET', meta, 'format', ARGV[2])

local lines, told = {}, {}
for n = 1, tonumber(ARGV[6]) do
  lines[n], told[n] = {unpack(ARGV, 2 * n + 5, 2 * n + 6)}, {}
end
local names, found = {}, {}
local first = 7 + 2 * #lines
for i = first, #ARGV, 5 do
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
  touched, states, scores, definitions, gone = {}, {}, {}, {}, {}
end

local KEPT = 10000 -- last changes of removed entries

-- Forget last changes of removed entries. Commits and other versions of the package remove entries, too, so each call
-- looks at twice as many last changes as it may have added. A user without the right to HRANDFIELD leaves that to others.
local function forget_some()
  local over = redis.call('HLEN', last) - redis.call('HLEN', entries) - KEPT
  for _ = 1, over > 0 and math.ceil(#names / 50) or 0 do
    local some = redis.pcall('HRANDFIELD', last, -100)
    if some['err'] then
      return
    end
    local there = redis.call('HMGET', entries, unpack(some))
    for n, name in ipairs(some) do
      if over > 0 and not there[n] and not changed[name] then
        over = over - redis.call('HDEL', last, name)
      end
    end
  end
end

-- What the beat plans anew is nobody's change: the last one stays that of the entry.
local function carry_on(name, before, after)
  local raw = before and stamp(before) ~= stamp(after) and redis.call('HGET', last, name)
  local id, is, change = string.match(raw or '', '^([^|]*)|([^|]*|[^|]*)|(.*)$')
  if id and is == stamp(before) then
    redis.call('HSET', last, name, id .. '|' .. stamp(after) .. '|' .. change)
  end
end

local was, done, stamps = head(), {}, {}
for n, name in ipairs(names) do
  local at = first + 5 * (n - 1)
  local expected, after, definition, score = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  if touched[name] then
    write_all()
  end
  if changed[name] then -- by an earlier edit of this call
    found[n] = redis.call('HGET', state, name)
  end
  if (found[n] or '') == expected then
    changed[name], touched[name], done[n] = true, true, '1'
    local whose = told[string.byte(ARGV[5], n)]
    stamps[name] = after ~= '' and stamp(after) or nil
    if whose then
      whose[#whose + 1] = name
    elseif after ~= '' then
      carry_on(name, found[n], after)
    end
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
for n, line in ipairs(lines) do
  if #told[n] > 0 then
    note_change(changes, last, line[1], line[2], told[n], stamps)
    if string.find(line[1], '^%["paused"') or string.find(line[1], '^%["resumed"') then
      redis.call('HSET', meta, 'pauses', kept) -- the leader remembers pauses of config entries
    end
  end
end
forget_some()
if head() < was then
  redis.call('PUBLISH', ARGV[1], 'head')
end
return {1, done}

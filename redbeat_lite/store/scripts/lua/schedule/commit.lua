-- needs chunks leads now
-- Advance planned entries, each only if its state is still the one that was planned. If broker and schedule share a
-- database, send their messages in the same step. Record the runs that the plan decides against.
-- KEYS: leader due entries state meta changed others...
--   others: queues, rows of runs and the deadlines
-- ARGS: token term call deadlines new_deadlines revision advances...
--   call: id of this call. Its reply is kept in meta, so that a leader that has lost it and repeats the call gets it again
--   deadlines: place of their key among the others, or ''
--   new_deadlines: JSON, or ''; for each entry a list of numbers. Each run has three: its nominal time, by when it begins,
--     and by when it ends, in ms, or 0 for no deadline. One number more is by when some run succeeds
--   revision: of the freezes that this was planned under; '|' if another one does not matter
--   advances: for each entry, none of them twice: its name; 'new-due-time number-of-commands guard', where its state must
--     begin with the guard; its new state, or '' to remove it; and two for each command:
--       'lpush place-among-the-others' message | 'pexpire place' ms | 'publish channel' message
--       | 'range place' 'rows-to-keep ms-that-they-live last-nominal-time-sent-before row'
--       | 'recorded place' 'nominal-time|entry': of a message that was sent before this call; drop the deadlines that its
--         rows answer
--     Few long texts, because each argument costs the beat more than the parsing here.
-- returns {0} this term is over
--       | {-2, freezes} the freezes have another revision; nothing was written
--       | {1, result, ...} per entry: 1 advanced, 0 changed meanwhile, a text: why its messages were refused
local known = redis.call('HMGET', meta, 'commit', 'freezes')
local last, freezes = known[1] or '', known[2] or ''
if string.find(last, call, 1, true) == 1 then
  return cjson.decode(string.sub(last, #call + 1))
end
if not leads(leader, token, term) then
  return {0}
end
if revision ~= '|' and revision ~= string.match(freezes, '^[^|]*') then
  return {-2, freezes}
end
-- This is written first: a server that takes no writes says so before any message is sent.
redis.call('HSET', meta, 'ticked', string.format('%.0f', now_ms()))

-- Of each entry: its name, new due time, guard, new state, and where its commands begin and end.
local names, dues, guards, afters, begins, ends = {}, {}, {}, {}, {}, {}
local i = 1
while i <= #advances do
  local n, score, count, guard = #names + 1, string.match(advances[i + 1], '^(%S+) (%d+) (.*)$')
  names[n], dues[n], guards[n], afters[n] = advances[i], score, guard, advances[i + 2]
  begins[n], ends[n] = i + 3, i + 2 * count + 2
  i = ends[n] + 1
end

local function states_from(n)
  return redis.call('HMGET', state, unpack(names, n, math.min(n + CHUNK - 1, #names)))
end

local kinds, payloads, states, scores, gone, later, ranges, recorded, promised = {}, {}, {}, {}, {}, {}, {}, {}, {}
local where = others[tonumber(deadlines)]
local set = new_deadlines ~= '' and cjson.decode(new_deadlines) or {}

-- The name of the command at c, and the key or the channel that it is for; few differ.
local words = {}
local function command(c)
  local known = words[advances[c]]
  if not known then
    local name, target = string.match(advances[c], '^(%l+) (.*)$')
    known = {name, name == 'publish' and target or others[tonumber(target)]}
    words[advances[c]] = known
  end
  return known[1], known[2]
end

local function note_deadline(at, member)
  if at ~= 0 then
    promised[#promised + 1], promised[#promised + 2] = at, member
  end
end

local function note_deadlines(name, times)
  for i = 1, #times - 2, 3 do
    local run = string.format('|%.0f|', times[i]) .. name
    note_deadline(times[i + 1], 'start' .. run)
    note_deadline(times[i + 2], 'finish' .. run)
  end
  if #times % 3 == 1 then
    note_deadline(times[#times], 'success||' .. name)
  end
end

local function refused(n)
  for c = begins[n], ends[n], 2 do
    local name, list = command(c)
    if name == 'lpush' then
      if not kinds[list] then
        kinds[list] = redis.call('TYPE', list)['ok']
        payloads[list] = {}
      end
      if kinds[list] ~= 'list' and kinds[list] ~= 'none' then
        return 'the queue is a ' .. kinds[list] .. ', not a list'
      end
    end
  end
end

-- A message on a channel cannot be taken back, so it is sent when nothing else of its entry can be refused.
local function published(n)
  for c = begins[n], ends[n], 2 do
    local name, channel = command(c)
    if name == 'publish' then
      local reply = redis.pcall('PUBLISH', channel, advances[c + 1])
      if type(reply) == 'table' then
        return reply['err']
      end
    end
  end
end

local function send(n)
  for c = begins[n], ends[n], 2 do
    local name, target = command(c)
    if name == 'lpush' then
      local queue = payloads[target]
      queue[#queue + 1] = advances[c + 1]
    elseif name == 'pexpire' then
      later[#later + 1] = c
    elseif name == 'range' then
      ranges[#ranges + 1] = c
    elseif name == 'recorded' then
      recorded[#recorded + 1] = c
    end
  end
end

-- The letter, first nominal time, length and number of a row that is a range.
local function read_range(row)
  local letter, first, length, number = string.match(row, '^|(%l)|(%x+)|(%x+)|(%x+)|$')
  return letter, tonumber(first or 0, 16), tonumber(length or 0, 16), tonumber(number or 0, 16)
end

-- Record a range of unsent runs. It is joined with the newest row if the two adjoin.
local function put_down(key, value)
  local keep, life, sent, row = string.match(value, '^(%d+) (%d+) (%-?%d+) (.*)$')
  local letter, first, length, number = read_range(row or '')
  if not letter then
    return
  end
  local newest = redis.call('ZREVRANGE', key, 0, 0)
  local same, begins, span, more = read_range(newest[1] or '')
  if same == letter and begins + span > tonumber(sent) and begins + span < first then
    redis.call('ZREM', key, newest[1])
    row = string.format('|%s|%x|%x|%x|', letter, begins, first + length - begins, number + more)
    first = begins
  end
  redis.call('ZADD', key, first, row)
  redis.call('ZREMRANGEBYRANK', key, 0, -1 - keep)
  redis.call('PEXPIRE', key, life)
end

-- A worker may have recorded the run before this call, when there were no deadlines to drop.
local function drop_recorded(rows, run)
  local nominal = string.match(run, '^%-?%d+')
  for _, row in ipairs(redis.call('ZRANGEBYSCORE', rows, nominal, nominal)) do
    local letter = string.match(row, '|(%a)|%x*|%x*|%x+|[%d-]*$') or 'l'
    if letter ~= 'l' then
      redis.call('ZREM', where, 'start|' .. run)
    end
    if not string.find('ryl', letter, 1, true) then
      redis.call('ZREM', where, 'finish|' .. run)
    end
  end
end

local results, before = {1}, nil
for n, name in ipairs(names) do
  if n % CHUNK == 1 then
    before = states_from(n)
  end
  local stored = before[(n - 1) % CHUNK + 1]
  local result = 0
  if stored and string.find(stored, guards[n], 1, true) == 1 then
    local reason = refused(n) or published(n)
    result = reason or 1
    if not reason then
      send(n)
      note_deadlines(name, set[n] or {})
      if afters[n] == '' then
        gone[#gone + 1] = name
      else
        states[#states + 1], states[#states + 2] = name, afters[n]
        scores[#scores + 1], scores[#scores + 2] = dues[n], name
      end
    end
  end
  results[n + 1] = result
end

-- If another program uses the key of the deadlines, this fails before anything is sent.
for n = 1, #promised, CHUNK do
  redis.call('ZADD', where, 'NX', unpack(promised, n, math.min(n + CHUNK - 1, #promised)))
end
-- Messages are sent before entries advance: nothing may advance that was not sent.
for list, queue in pairs(payloads) do
  write('LPUSH', list, queue)
end
write('HSET', state, states)
write('ZADD', due, scores)
write('HDEL', state, gone)
write('HDEL', entries, gone)
write('ZREM', due, gone)
for _, name in ipairs(gone) do
  redis.pcall('HDEL', changed, name) -- the messages are sent, so another program's key must not end the script
end
for _, c in ipairs(later) do
  local _, list = command(c)
  redis.pcall('PEXPIRE', list, advances[c + 1])
end
for _, c in ipairs(ranges) do
  local _, rows = command(c)
  pcall(put_down, rows, advances[c + 1])
end
for _, c in ipairs(recorded) do
  local _, rows = command(c)
  pcall(drop_recorded, rows, advances[c + 1])
end
redis.call('HSET', meta, 'commit', call .. cjson.encode(results))
return results

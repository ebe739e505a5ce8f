-- needs chunks leads now
-- Advance entries that were planned, each only if the term still runs and the entry is still what was planned;
-- where broker and schedule share a database, send its messages in the same step. What the plan decides against is put
-- down in the rows of the entry.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] meta
-- KEYS[6..] lists of the broker, rows of entries, and the deadlines
-- ARGV[1] token  ARGV[2] term  ARGV[3] id of this call: the reply to the last one is kept in meta, and
-- a leader that lost it and sends the call again is given the same  ARGV[4] index-of-KEYS of the deadlines  ARGV[5] JSON,
-- '' for none: for each entry a list of numbers, of each run its nominal time, by when it begins and by when it ends,
-- ms, 0 for whenever; and one more if some run is to succeed by then. Those are set that are not there
-- ARGV[6] the revision of the freezes that this was planned under, '|' where another one does not matter; then for each
-- entry, none of them twice, as few arguments as can be, for each costs the beat more than a look at it here:
--   name, 'new-due-time number-of-commands guard', where its state must begin with the guard, new state or '' to remove it,
--   and for each command two: 'lpush index-of-KEYS' payload | 'pexpire index-of-KEYS' ms | 'publish channel' payload
--     | 'range index-of-KEYS' 'rows-to-keep ms-that-they-live last-nominal-time-sent-before row'
--     | 'recorded index-of-KEYS' 'nominal-time|entry': of a message that was out before, not those that its rows make idle
-- returns {0} this term is over
--       | {-2, freezes} they are of another revision, nothing was written
--       | {1, result, ...} per entry: 1 advanced, 0 not what was planned, text: its messages were refused, because of this
local known = redis.call('HMGET', KEYS[5], 'commit', 'freezes')
local last, freezes = known[1] or '', known[2] or ''
if string.find(last, ARGV[3], 1, true) == 1 then
  return cjson.decode(string.sub(last, #ARGV[3] + 1))
end
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
if ARGV[6] ~= '|' and ARGV[6] ~= string.match(freezes, '^[^|]*') then
  return {-2, freezes}
end
-- Written first: a server that takes no writes says so before anything is out.
redis.call('HSET', KEYS[5], 'ticked', string.format('%.0f', now_ms()))
local due, entries, state = KEYS[2], KEYS[3], KEYS[4]

-- Of each entry: its name, new due time, guard, new state, and where its commands begin and end.
local names, dues, guards, afters, begins, ends = {}, {}, {}, {}, {}, {}
local i = 7
while i <= #ARGV do
  local n, score, count, guard = #names + 1, string.match(ARGV[i + 1], '^(%S+) (%d+) (.*)$')
  names[n], dues[n], guards[n], afters[n], begins[n], ends[n] = ARGV[i], score, guard, ARGV[i + 2], i + 3, i + 2 * count + 2
  i = ends[n] + 1
end

local function states_from(n)
  return redis.call('HMGET', state, unpack(names, n, math.min(n + CHUNK - 1, #names)))
end

local kinds, payloads, states, scores, gone, later, ranges, recorded, deadlines = {}, {}, {}, {}, {}, {}, {}, {}, {}
local where = KEYS[tonumber(ARGV[4])]
local set = ARGV[5] ~= '' and cjson.decode(ARGV[5]) or {}

-- The name of the command at c, and the key or the channel that it is for; few differ.
local words = {}
local function command(c)
  local found = words[ARGV[c]]
  if not found then
    local name, target = string.match(ARGV[c], '^(%l+) (.*)$')
    found = {name, name == 'publish' and target or KEYS[tonumber(target)]}
    words[ARGV[c]] = found
  end
  return found[1], found[2]
end

local function note_deadline(at, member)
  if at ~= 0 then
    deadlines[#deadlines + 1], deadlines[#deadlines + 2] = at, member
  end
end

local function note_deadlines(name, told)
  for i = 1, #told - 2, 3 do
    local run = string.format('|%.0f|', told[i]) .. name
    note_deadline(told[i + 1], 'start' .. run)
    note_deadline(told[i + 2], 'finish' .. run)
  end
  if #told % 3 == 1 then
    note_deadline(told[#told], 'success||' .. name)
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

-- A channel has no list to wait in: an ACL that forbids it is found by trying, and what was heard cannot be taken back.
local function published(n)
  for c = begins[n], ends[n], 2 do
    local name, channel = command(c)
    if name == 'publish' then
      local reply = redis.pcall('PUBLISH', channel, ARGV[c + 1])
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
      queue[#queue + 1] = ARGV[c + 1]
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

-- Put a range down; one that adjoins it becomes one with it. Whatever is wrong with the rows, the schedule goes on.
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

-- A worker that was quicker than this has found no deadlines to take away.
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
  local found = before[(n - 1) % CHUNK + 1]
  local result = 0
  if found and string.find(found, guards[n], 1, true) == 1 then
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
for n = 1, #deadlines, CHUNK do
  redis.call('ZADD', where, 'NX', unpack(deadlines, n, math.min(n + CHUNK - 1, #deadlines)))
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
for _, c in ipairs(later) do
  local _, list = command(c)
  redis.pcall('PEXPIRE', list, ARGV[c + 1])
end
for _, c in ipairs(ranges) do
  local _, rows = command(c)
  pcall(put_down, rows, ARGV[c + 1])
end
for _, c in ipairs(recorded) do
  local _, rows = command(c)
  pcall(drop_recorded, rows, ARGV[c + 1])
end
redis.call('HSET', KEYS[5], 'commit', ARGV[3] .. cjson.encode(results))
return results

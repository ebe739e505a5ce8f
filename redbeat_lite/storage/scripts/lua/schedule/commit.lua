-- needs chunks leads
-- Advance entries that were planned, each only if the term still runs and the entry is still what was planned;
-- where broker and schedule share a database, send its messages in the same step. What the plan decides against is put
-- down in the rows of the entry.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] meta  KEYS[6] names
-- KEYS[7..] lists of the broker, rows of entries, and the deadlines
-- ARGV[1] token  ARGV[2] term  ARGV[3] now_ms  ARGV[4] id of this call: the reply to the last one is kept in meta, and
-- a leader that lost it and sends the call again is given the same  ARGV[5] index-of-KEYS of the deadlines  ARGV[6] JSON,
-- '' for none: for each entry a list of ms, member, ..., of which those are set that are not there
-- ARGV[7] the revision of the freezes that this was planned under, '|' where another one does not matter; then for each
-- entry, none of them twice:
--   name, guard (what its state must begin with), new state or '' to remove it, new due time, number of commands,
--   and for each command: 'lpush' index-of-KEYS payload | 'pexpire' index-of-KEYS ms | 'publish' channel payload
--     | 'range' index-of-KEYS 'rows-to-keep ms-that-they-live last-nominal-time-sent-before row'
--     | 'recorded' index-of-KEYS 'nominal-time|entry': of a message that was out before, not those that its rows make idle
-- returns {0} this term is over
--       | {-2, freezes} they are of another revision, nothing was written
--       | {1, result, ...} per entry: 1 advanced, 0 not what was planned, text: its messages were refused, because of this
local known = redis.call('HMGET', KEYS[5], 'commit', 'freezes')
local last, freezes = known[1] or '', known[2] or ''
if string.find(last, ARGV[4], 1, true) == 1 then
  return cjson.decode(string.sub(last, #ARGV[4] + 1))
end
if not leads(KEYS[1], ARGV[1], ARGV[2]) then
  return {0}
end
if ARGV[7] ~= '|' and ARGV[7] ~= string.match(freezes, '^[^|]*') then
  return {-2, freezes}
end
-- Written first: a server that takes no writes says so before anything is out.
redis.call('HSET', KEYS[5], 'clock', ARGV[3])
local due, entries, state = KEYS[2], KEYS[3], KEYS[4]

local first, names = {}, {}
local i = 8
while i <= #ARGV do
  first[#first + 1], names[#names + 1] = i, ARGV[i]
  i = i + 5 + 3 * tonumber(ARGV[i + 4])
end

local function states_from(n)
  return redis.call('HMGET', state, unpack(names, n, math.min(n + CHUNK - 1, #names)))
end

local kinds, payloads, states, scores, gone, later, ranges, recorded, deadlines = {}, {}, {}, {}, {}, {}, {}, {}, {}
local where = KEYS[tonumber(ARGV[5])]
local set = ARGV[6] ~= '' and cjson.decode(ARGV[6]) or {}

local function refused(at, count)
  for c = at, at + 3 * (count - 1), 3 do
    if ARGV[c] == 'lpush' then
      local index = ARGV[c + 1]
      if not kinds[index] then
        kinds[index] = redis.call('TYPE', KEYS[tonumber(index)])['ok']
        payloads[index] = {}
      end
      if kinds[index] ~= 'list' and kinds[index] ~= 'none' then
        return 'the queue is a ' .. kinds[index] .. ', not a list'
      end
    end
  end
end

-- A channel has no list to wait in: an ACL that forbids it is found by trying, and what was heard cannot be taken back.
local function published(at, count)
  for c = at, at + 3 * (count - 1), 3 do
    if ARGV[c] == 'publish' then
      local reply = redis.pcall('PUBLISH', ARGV[c + 1], ARGV[c + 2])
      if type(reply) == 'table' then
        return reply['err']
      end
    end
  end
end

local function send(at, count)
  for c = at, at + 3 * (count - 1), 3 do
    if ARGV[c] == 'lpush' then
      local queue = payloads[ARGV[c + 1]]
      queue[#queue + 1] = ARGV[c + 2]
    elseif ARGV[c] == 'pexpire' then
      later[#later + 1] = c
    elseif ARGV[c] == 'range' then
      ranges[#ranges + 1] = c
    elseif ARGV[c] == 'recorded' then
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
  local newest = redis.pcall('ZREVRANGE', key, 0, 0)
  if newest['err'] then
    return
  end
  local same, begins, span, more = read_range(newest[1] or '')
  if same == letter and begins + span > tonumber(sent) and begins + span < first then
    redis.pcall('ZREM', key, newest[1])
    row = string.format('|%s|%x|%x|%x|', letter, begins, first + length - begins, number + more)
    first = begins
  end
  redis.pcall('ZADD', key, first, row)
  redis.pcall('ZREMRANGEBYRANK', key, 0, -1 - keep)
  redis.pcall('PEXPIRE', key, life)
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
for n, at in ipairs(first) do
  if n % CHUNK == 1 then
    before = states_from(n)
  end
  local name, guard, after, count = names[n], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 4])
  local found = before[(n - 1) % CHUNK + 1]
  local result = 0
  if found and string.find(found, guard, 1, true) == 1 then
    local reason = refused(at + 5, count) or published(at + 5, count)
    result = reason or 1
    if not reason then
      send(at + 5, count)
      for _, value in ipairs(set[n] or {}) do
        deadlines[#deadlines + 1] = value
      end
      if after == '' then
        gone[#gone + 1] = name
      else
        states[#states + 1], states[#states + 2] = name, after
        scores[#scores + 1], scores[#scores + 2] = ARGV[at + 3], name
      end
    end
  end
  results[n + 1] = result
end

-- What is sent comes first: nothing may be advanced that was not.
for index, queue in pairs(payloads) do
  write('LPUSH', KEYS[tonumber(index)], queue)
end
write('HSET', state, states)
write('ZADD', due, scores)
write('HDEL', state, gone)
write('HDEL', entries, gone)
write('ZREM', due, gone)
write('ZREM', KEYS[6], gone)
for _, c in ipairs(later) do
  redis.pcall('PEXPIRE', KEYS[tonumber(ARGV[c + 1])], ARGV[c + 2])
end
for _, c in ipairs(ranges) do
  pcall(put_down, KEYS[tonumber(ARGV[c + 1])], ARGV[c + 2])
end
for n = 1, #deadlines, CHUNK do
  redis.pcall('ZADD', where, 'NX', unpack(deadlines, n, math.min(n + CHUNK - 1, #deadlines)))
end
for _, c in ipairs(recorded) do
  pcall(drop_recorded, KEYS[tonumber(ARGV[c + 1])], ARGV[c + 2])
end
redis.call('HSET', KEYS[5], 'commit', ARGV[4] .. cjson.encode(results))
return results

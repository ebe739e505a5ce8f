-- needs leads claim
-- Advance entries, each only if its state is still the one that it was planned from. Send their
-- messages at the same time, and record the runs that are not sent.
-- KEYS: leader due entries state meta others...
--   others: queues, rows of runs, keys of once-locks, the deadlines, and states of the entries that
--     backfills are of
-- ARGS: token term call planned_at advances
--   call: id of this call; its reply is kept in meta, and is returned if the call is repeated
--   planned_at: when this was planned, in epoch ms; if a freeze ends later, nothing is done
--   advances: a list in MessagePack. For each entry, none of them twice, it has: name; guard, with
--     which its state must begin; new state, '': remove it; new due time; and a list of commands:
--       {'lpush', place among the others, message} | {'pexpire', place, ms}
--       | {'publish', channel, message}
--       | {'deadlines', place, {ms, member, ...}}
--       | {'range', place, {rows to keep, ms that they live, nominal time of the last run that was
--         sent, letter of the outcome, first and last nominal time, number of runs}}
--       | {'claim', {places of a once-lock, its waiters, the index of locks and the last fence},
--         claim (see claim.lua)}: advance the entry only if its task can acquire this lock. It comes
--         after the messages, because no lock is acquired if a channel refuses a message
--       | {'claimed', place, ''}: advance the entry only if this call acquires this once-lock for the
--         message of an entry before it
--       | {'recorded', place, 'nominal-time|entry'}: the message was sent before this call, so
--         remove the deadlines that its run has met, as its row says
--       | {'if', place, 'version|generation|entry'}: advance this backfill only if the state of its
--         entry still begins with this version and generation
-- returns {0} this term is over
--       | {-2} a freeze holds; nothing was written
--       | {1, result, ...} per entry: 1 advanced; 0 it has changed, or the entry of a backfill has,
--     or its once-lock is taken, or the lock of its 'claimed' was not acquired; text: the broker's
--     refusal
-- The field 'commit' has the id of the last call, and its reply in JSON.
local fields = redis.call('HMGET', meta, 'commit', 'freeze')
local last_call, freeze = fields[1] or '', fields[2] or ''
if string.find(last_call, call, 1, true) == 1 then
  return cjson.decode(string.sub(last_call, #call + 1))
end
if not leads(leader, token, term) then
  return {0}
end
if tonumber(string.match(freeze, '^(%d+)|') or 0) > tonumber(planned_at) then
  return {-2}
end
-- Write this first, so that a server that takes no writes fails before any message is sent.
redis.call('HSET', meta, 'ticked', string.format('%.0f', now))

local messages = {} -- by queue
local deadlines -- key of the deadlines, if this call sets one
local states, scores, removed, follow_ups = {}, {}, {}, {}
local claims, claimed = {}, {} -- claims of once-locks, and the keys of these locks

-- Return the keys of a once-lock by their names, as claim.lua takes them.
local function lock_keys(places)
  local lock, waiters, index, fence = unpack(places)
  return {lock = others[lock], waiters = others[waiters], index = others[index], fence = others[fence]}
end

-- Return why an entry cannot be advanced, or nothing. A text is the broker's refusal. Return 0 if the
-- entry of a backfill was changed meanwhile, if another task has the once-lock, or if this call has
-- not acquired the lock of a 'claimed'.
local function refusal_of(commands)
  for _, command in ipairs(commands) do
    local key = others[command[2]]
    if command[1] == 'lpush' and not messages[key] then
      local kind = redis.call('TYPE', key)['ok']
      if kind ~= 'list' and kind ~= 'none' then
        return 'the queue is a ' .. kind .. ', not a list'
      end
      messages[key] = {}
    elseif command[1] == 'if' then
      local planned_from, entry = string.match(command[3], '^(.-|.-|)(.*)$')
      if string.find(redis.call('HGET', key, entry) or '', planned_from, 1, true) ~= 1 then
        return 0
      end
    elseif command[1] == 'claimed' and not claimed[key] then
      return 0
    elseif command[1] == 'claim' then
      local keys = lock_keys(command[2])
      if claimed[keys.lock] or is_taken(keys, command[3]) then
        return 0
      end
    end
  end
end

-- Collect the messages and follow-ups of an entry, and run its other commands. Return why a channel
-- refuses a message, or nothing. The later messages to channels are Celery's events about the first
-- one. If a channel refuses an event, go on, or each retry would send the message again.
local function collect(commands)
  for n, command in ipairs(commands) do
    local kind, target, value = unpack(command)
    if kind == 'lpush' then
      table.insert(messages[others[target]], value)
    elseif kind == 'publish' then
      local reply = redis.pcall('PUBLISH', target, value)
      if n == 1 and type(reply) == 'table' then
        return reply['err']
      end
    elseif kind == 'deadlines' then
      -- If another program uses this key, the script ends before any message is put into a queue.
      deadlines = others[target]
      redis.call('ZADD', deadlines, 'LT', unpack(value))
    elseif kind == 'claim' then
      local keys = lock_keys(target)
      claimed[keys.lock] = true
      table.insert(claims, {keys, value})
    elseif kind ~= 'if' and kind ~= 'claimed' then
      table.insert(follow_ups, command)
    end
  end
end

-- Functions of the follow-ups: commands that are made after the messages are sent. If one fails,
-- the others are made.
local follow = {}

function follow.pexpire(queue, ms)
  redis.call('PEXPIRE', queue, ms)
end

-- Record a range of unsent runs. Join it with the newest row if that is a range with the same
-- outcome, and nothing was sent between the two.
function follow.range(rows, range)
  local keep, life, sent, letter, first, last, number = unpack(range)
  local newest = redis.call('ZREVRANGE', rows, 0, 0)[1] or ''
  local old_letter, old_first, length, old_number = string.match(newest, '^|(%l)|(%x+)|(%x+)|(%x+)|$')
  if old_letter == letter then
    old_first = tonumber(old_first, 16)
    local old_last = old_first + tonumber(length, 16)
    if sent < old_last and old_last < first then
      redis.call('ZREM', rows, newest)
      first, number = old_first, number + tonumber(old_number, 16)
    end
  end
  redis.call('ZADD', rows, first, string.format('|%s|%x|%x|%x|', letter, first, last - first, number))
  redis.call('ZREMRANGEBYRANK', rows, 0, -1 - keep)
  redis.call('PEXPIRE', rows, life)
end

-- Remove the deadlines of a run that a worker has recorded before this call set them, unless the row
-- says that it began or ended too late. The row of a retry (attempt above 0) does not say when the
-- run began.
function follow.recorded(rows, run)
  local nominal = tonumber(string.match(run, '^%-?%d+'))
  local start_at, finish_at = unpack(redis.call('ZMSCORE', deadlines, 'start|' .. run, 'finish|' .. run))
  for _, row in ipairs(redis.call('ZRANGEBYSCORE', rows, nominal, nominal)) do
    local letter, begin, duration, attempt = string.match(row, '|(%a)|(%x*)|(%x*)|(%x+)|[%d-]*$')
    letter = letter or 'l'
    begin = nominal + (tonumber(begin or '', 16) or 0)
    local is_late = start_at and attempt == '0' and begin > tonumber(start_at)
    if letter ~= 'l' and not is_late then
      redis.call('ZREM', deadlines, 'start|' .. run)
    end
    local is_too_long = finish_at and begin + (tonumber(duration or '', 16) or 0) > tonumber(finish_at)
    if not string.find('ryl', letter, 1, true) and not is_too_long then
      redis.call('ZREM', deadlines, 'finish|' .. run)
    end
  end
end

local results = {1}
for n, advance in ipairs(cmsgpack.unpack(advances)) do
  local name, guard, after, at, commands = unpack(advance)
  local result = 0
  if string.find(redis.call('HGET', state, name) or '', guard, 1, true) == 1 then
    result = refusal_of(commands) or collect(commands) or 1
  end
  if result == 1 and after == '' then
    removed[#removed + 1] = name
  elseif result == 1 then
    states[#states + 1], states[#states + 2] = name, after
    scores[#scores + 1], scores[#scores + 2] = at, name
  end
  results[n + 1] = result
end

-- Run a command with all values, 1,000 at a time, because unpack() fails for many thousands.
local function write(command, key, values)
  for n = 1, #values, 1000 do
    redis.call(command, key, unpack(values, n, math.min(n + 999, #values)))
  end
end

-- Send messages before entries advance, so that no entry advances without its message.
for queue, texts in pairs(messages) do
  write('LPUSH', queue, texts)
end
write('HSET', state, states)
write('ZADD', due, scores)
write('HDEL', state, removed)
write('HDEL', entries, removed)
write('ZREM', due, removed)
for _, command in ipairs(follow_ups) do
  pcall(follow[command[1]], others[command[2]], command[3])
end
-- Acquire the locks last, so that there is no lock without its message.
for _, claim in ipairs(claims) do
  acquire(unpack(claim))
end
redis.call('HSET', meta, 'commit', call .. cjson.encode(results))
return results

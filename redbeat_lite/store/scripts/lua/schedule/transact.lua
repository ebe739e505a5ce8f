-- needs now change
-- Make steps in their order, each only if its checks hold. Stop at a guard that does not hold.
-- KEYS: reply changes? state? due? targets...
-- ARGS: wake guards packed
--   reply: keeps the reply to this call for a minute, because a client that has lost it calls again
--   due: to wake the beat if the first entry becomes due earlier
--   guards: number of guards, which are the first steps
--   packed: three lists in MessagePack:
--     statements: for each, its rows, and 'CHANGED' or 'NAMED' if its first value is a name for the
--       record. A row is a command: the reply that a check expects, or false; the command's name;
--       the place of its key among the targets; its other words. A number in place of a word is the
--       place of a value in the step
--     lines of the record: for each, JSON of the change and of its fields
--     steps: for each, the numbers of its statement and its line (0: none), and its values
-- returns {number of the guard that does not hold, ''}
--   | {0, done}: for each step, guards included, '1' it was made | '0' it was not
local LONGEST = 800 -- most bytes of a name in the record; only what others wrote can be longer
local kept = redis.call('GET', reply)
if kept then
  return {0, kept}
end
local statements, lines, steps = unpack(cmsgpack.unpack(packed))

-- Run the rows of a step until a check fails. Return whether all checks hold.
-- If a word of a row is a number, step[word] is the value that takes its place. If an ACL forbids the
-- wake channel, the edit is made all the same, and the beat notices it later.
local function make(step, rows)
  for _, row in ipairs(rows) do
    local expected, command, target = unpack(row, 1, 3)
    local words = {command, targets[target]}
    for n = 4, #row do
      words[n - 1] = step[row[n]] or row[n]
    end
    local run = command == 'PUBLISH' and redis.pcall or redis.call
    local answer = run(unpack(words)) or ''
    if expected and answer ~= (step[expected] or expected) then
      return false
    end
  end
  return true
end

local function first_due()
  return tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or 'inf')
end

local first_before = due and first_due()
local made = {}
local names = {} -- names[line]: what the steps of this line have changed
local last_line = {} -- last_line[name]: line of the last change of this entry
for n, step in ipairs(steps) do
  local rows, naming = unpack(statements[step[1]])
  local line = step[2]
  local is_made = make(step, rows)
  made[n] = is_made and '1' or '0'
  if not is_made and n <= tonumber(guards) then
    return {n, ''}
  end
  if is_made and line > 0 then
    names[line] = names[line] or {}
    if naming then
      local name = string.sub(step[3], 1, LONGEST)
      table.insert(names[line], name)
      last_line[name] = naming == 'CHANGED' and line or nil
    end
  end
end

local done = table.concat(made)
redis.call('SET', reply, done, 'PX', 60000)
local last_change = {} -- last_change[line]: as an entry stores it
for number, line in ipairs(lines) do
  if names[number] then -- otherwise, no step of this line was made
    last_change[number] = record_change(line[1], line[2], names[number])
  end
end
for name, line in pairs(last_line) do
  -- The last change of an entry is the second line of its state.
  local text = redis.call('HGET', state, name)
  if text then
    redis.call('HSET', state, name, string.match(text, '^[^\n]*') .. '\n' .. last_change[line])
  end
end
if due and first_due() < first_before then
  redis.pcall('PUBLISH', wake, 'head')
end
return {0, done}

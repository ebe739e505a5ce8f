-- needs now change
-- Make steps in their order, each only if its checks hold. Stop at a guard that does not hold.
-- KEYS: reply changes? state? due? targets...
-- ARGS: wake guards packed
--   reply: keeps the reply to this call for a minute, because a client that has lost it calls again
--   due: to wake the beat if the first entry becomes due earlier
--   guards: number of guards, which are the first steps
--   packed: three lists in MessagePack:
--     statements: for each, its checks {command, expected word}, its commands, and 'CHANGED' or
--       'NAMED' if its first value is a name for the record. A command is a list of words. Word 2
--       is the place of its key among the targets. Other numbers are places of values in the step
--     lines of the record: for each, JSON of the change and of its fields
--     steps: for each, the numbers of its statement and its line (0: none), and its values
-- returns {1, done}: for each step '1' it was made | '0' it was not
--   | {0, number of the guard that does not hold}
local LONGEST = 800 -- most bytes of a name in the record; only what others wrote can be longer
local kept = redis.call('GET', reply)
if kept then
  return {1, kept}
end
local statements, lines, steps = unpack(cmsgpack.unpack(packed))

-- Return the word of a statement, or the value of the step in its place.
local function fill(word, step)
  return type(word) == 'number' and step[word] or word
end

local function run(command, step)
  local words = {command[1], targets[command[2]]}
  for n = 3, #command do
    words[n] = fill(command[n], step)
  end
  return redis.call(unpack(words))
end

local function holds(checks, step)
  for _, check in ipairs(checks) do
    if (run(check[1], step) or '') ~= fill(check[2], step) then
      return false
    end
  end
  return true
end

local function first_due()
  return tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or 'inf')
end

local first = due and first_due()
local done = {}
local names = {} -- of each line
local last_line = {} -- of each entry that was changed
for n, step in ipairs(steps) do
  local checks, commands, naming = unpack(statements[step[1]])
  local is_made = holds(checks, step)
  done[n] = is_made and '1' or '0'
  if not is_made and n <= tonumber(guards) then
    return {0, n}
  end
  for _, command in ipairs(is_made and commands or {}) do
    run(command, step)
  end
  local line = step[2]
  if is_made and line > 0 then
    names[line] = names[line] or {}
    if naming then
      local name = string.sub(step[3], 1, LONGEST)
      table.insert(names[line], name)
      last_line[name] = naming == 'CHANGED' and line or nil
    end
  end
end

done = table.concat(done)
redis.call('SET', reply, done, 'PX', 60000)
for number, line in ipairs(lines) do
  local named = names[number]
  local last_change = named and note_change(line[1], line[2], named)
  for _, name in ipairs(named or {}) do
    if last_line[name] == number then
      -- The last change of an entry is the second line of its state.
      local text = redis.call('HGET', state, name)
      if text then
        redis.call('HSET', state, name, string.match(text, '^[^\n]*') .. '\n' .. last_change)
      end
    end
  end
end
if due and first_due() < first then
  redis.call('PUBLISH', wake, 'head')
end
return {1, done}

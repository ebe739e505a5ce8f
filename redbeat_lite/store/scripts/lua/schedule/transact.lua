-- needs now change
-- Make steps in their order, each only if its checks hold; and none if a guard does not hold.
-- KEYS: reply changes? changed? due? targets...
-- ARGS: wake key_names guards statement_count line_count words...
--   reply: to this call, kept for a minute: a client that has lost it sends the call again
--   due: to wake the beat if the first entry becomes due earlier   key_names: of targets
--   guards: number of the first steps that are guards
--   words: the statements, as store/transact.py describes them; then JSON of the change and of its
--     fields for each line of the record; then for each step the number of its statement, the number
--     of its line, 0 for none, and its values
-- returns {1, done}: for each step '1' it was made | '0' it was not
--   | {0, number of the guard that does not hold}
local LONGEST = 800 -- bytes of a name in the record: those of entries are shorter, rubbish may be longer
local kept = redis.call('GET', reply)
if kept then
  return {1, kept}
end

local key_of = {}
for name in string.gmatch(key_names, '%S+') do
  key_of[name] = table.remove(targets, 1)
end

-- Return a row of a statement as a list, in which a number stands for a value.
local function parse_row(row)
  local pattern = {}
  for word in string.gmatch(row, '%S+') do
    local number = tonumber(string.match(word, '^%$(%d+)$'))
    pattern[#pattern + 1] = number or (word ~= 'NONE' and word or '')
  end
  return pattern
end

-- Return the checks and commands of a statement, and how many values it takes.
local function parse(text)
  local statement = {checks = {}, commands = {}, size = 0}
  for row in string.gmatch(text, '[^\n]+') do
    local pattern = parse_row(row)
    if pattern[1] == 'NAMED' or pattern[1] == 'CHANGED' then
      statement.names = pattern[1]
    elseif pattern[1] == 'IF' then
      table.remove(pattern, 1)
      table.remove(pattern, #pattern - 1) -- IS
      statement.checks[#statement.checks + 1] = pattern
    elseif #pattern > 0 then
      statement.commands[#statement.commands + 1] = pattern
    end
    for n, word in ipairs(pattern) do
      statement.size = math.max(statement.size, type(word) == 'number' and word or 0)
      pattern[n] = n == 2 and key_of[word] or word
    end
  end
  return statement
end

local at = 0 -- number of words that were read

local function fill(pattern)
  local filled = {}
  for n, word in ipairs(pattern) do
    filled[n] = type(word) == 'number' and words[at + word] or word
  end
  return filled
end

local function holds(statement)
  for _, check in ipairs(statement.checks) do
    local command = fill(check)
    local expected = table.remove(command)
    if (redis.call(unpack(command)) or '') ~= expected then
      return false
    end
  end
  return true
end

local function first_due()
  return tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or 'inf')
end

local statements, lines = {}, {}
for n = 1, tonumber(statement_count) do
  statements[n] = parse(words[n])
end
for n = 1, tonumber(line_count) do
  local place = #statements + 2 * n
  lines[n] = {change = words[place - 1], fields = words[place], names = {}}
end
at = #statements + 2 * #lines

local first = due and first_due()
local done = {}
local last_line = {} -- of each entry that was changed
while at < #words do
  local statement = statements[tonumber(words[at + 1])]
  local line = lines[tonumber(words[at + 2])]
  at = at + 2
  local is_made = holds(statement)
  done[#done + 1] = is_made and '1' or '0'
  if not is_made and #done <= tonumber(guards) then
    return {0, #done}
  end
  for _, command in ipairs(is_made and statement.commands or {}) do
    redis.call(unpack(fill(command)))
  end
  if is_made and line then
    line.is_made = true
    if statement.names then
      local name = string.sub(words[at + 1], 1, LONGEST)
      line.names[#line.names + 1] = name
      last_line[name] = statement.names == 'CHANGED' and line or nil
    end
  end
  at = at + statement.size
end

done = table.concat(done)
redis.call('SET', reply, done, 'PX', 60000)
for _, line in ipairs(lines) do
  local last_change = line.is_made and note_change(line.change, line.fields, line.names)
  for _, name in ipairs(line.names) do
    if last_line[name] == line then
      redis.call('HSET', changed, name, last_change)
    end
  end
end
if due and first_due() < first then
  redis.call('PUBLISH', wake, 'head')
end
return {1, done}

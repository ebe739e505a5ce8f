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

local at = 0 -- number of words that were read

-- Return words as a command, and the numbers of values by their places in it.
local function parse_words(text)
  local command, values = {}, {}
  for word in string.gmatch(text, '%S+') do
    values[#command + 1] = tonumber(string.match(word, '^%$(%d+)$'))
    command[#command + 1] = word == 'NONE' and '' or word
  end
  command[2] = key_of[command[2]] or command[2]
  return {command = command, values = values}
end

-- Return the checks and commands of a statement, and how many values it takes.
local function parse(text)
  local statement = {checks = {}, commands = {}, size = 0}
  for number in string.gmatch(text, '%$(%d+)') do
    statement.size = math.max(statement.size, tonumber(number))
  end
  for row in string.gmatch(text, '[^\n]*%S') do
    local check, expected = string.match(row, '^ *IF (.*) IS (%S+)$')
    local names = string.match(row, '^ *(%u+) %$1$')
    if check then
      local pattern = parse_words(check)
      pattern.expected = parse_words(expected)
      statement.checks[#statement.checks + 1] = pattern
    elseif names then
      statement.names = names
    else
      statement.commands[#statement.commands + 1] = parse_words(row)
    end
  end
  return statement
end

-- Return the command of a pattern with the values of the step that is made.
local function fill(pattern)
  for place, number in pairs(pattern.values) do
    pattern.command[place] = words[at + number]
  end
  return pattern.command
end

local function holds(statement)
  for _, check in ipairs(statement.checks) do
    if (redis.call(unpack(fill(check))) or '') ~= fill(check.expected)[1] then
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

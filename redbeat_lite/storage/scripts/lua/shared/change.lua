-- needs chunks
-- For the scripts that edit: what they did as a line of the record of changes, and as the last change of each entry.
local NAMED = 20 -- names that a line tells; the others it counts
local LINES = 10000 -- lines that are kept, about
local LONGEST = 800 -- bytes of a name: what is longer is none, and may be of any length

local function cut_name(name)
  return #name > LONGEST and string.sub(name, 1, LONGEST) or name
end

-- takes the keys of both, a line in its three parts (change, fields, the same short or '' for none), and the names
-- A record that cannot be written undoes nothing, and keeps nobody from his edit: then there is a gap in it.
local function note_change(changes, changed, line, names)
  local told = {}
  for n = 1, math.min(#names, NAMED) do
    told[n] = cut_name(names[n])
  end
  local id = redis.pcall('XADD', changes, 'MAXLEN', '~', LINES, '*',
    'change', line[1], 'fields', line[2], 'names', #told > 0 and cjson.encode(told) or '[]', 'count', #names)
  if type(id) == 'table' or line[3] == '' then
    return
  end
  local last, values = id .. '|' .. line[3], {}
  for n, name in ipairs(names) do
    values[2 * n - 1], values[2 * n] = cut_name(name), last
  end
  for n = 1, #values, CHUNK do
    redis.pcall('HSET', changed, unpack(values, n, math.min(n + CHUNK - 1, #values)))
  end
end

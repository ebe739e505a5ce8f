-- needs chunks
-- For the scripts that edit: what they did as a line of the record of changes, and as the last change of each entry.
local NAMED = 20 -- names that a line tells; the others it counts
local LINES = 10000 -- lines that are kept, about

-- takes the keys of both, a line in its three parts (change, fields, the same short or '' for none), and the names
-- A record that cannot be written undoes nothing, and keeps nobody from his edit: then there is a gap in it.
local function note_change(changes, changed, line, names)
  local told = #names > 0 and cjson.encode({unpack(names, 1, math.min(#names, NAMED))}) or '[]'
  local id = redis.pcall('XADD', changes, 'MAXLEN', '~', LINES, '*',
    'change', line[1], 'fields', line[2], 'names', told, 'count', #names)
  if type(id) == 'table' or line[3] == '' then
    return
  end
  local last, values = id .. '|' .. line[3], {}
  for n, name in ipairs(names) do
    values[2 * n - 1], values[2 * n] = name, last
  end
  for n = 1, #values, CHUNK do
    redis.pcall('HSET', changed, unpack(values, n, math.min(n + CHUNK - 1, #values)))
  end
end

-- needs chunks
-- For the scripts that edit: what they did as a line of the record of changes, and as the last change of each entry.
local NAMED, ROOM = 20, 500 -- names that a line tells, and bytes of those after the first; the others it counts
local LINES = 10000 -- lines that are kept, about
local LONGEST = 800 -- bytes of a name: what is longer is none, and may be of any length

local function cut_name(name)
  return #name > LONGEST and string.sub(name, 1, LONGEST) or name
end

-- Version and generation of a state, which an edit changes and a run does not.
local function stamp(state)
  return string.match(state, '^[^|]*|[^|]*') or '|'
end

-- takes the keys of both, '' for the latter where it is no change of entries; JSON of the change and of its fields, or
-- nil; the names; and the stamps of entries that are still there, by name, or nil
-- A user without the right to XADD may edit all the same: then the record has a gap.
local function note_change(changes, changed, change, fields, names, stamps)
  local told, bytes = {}, 0
  for n = 1, math.min(#names, NAMED) do
    local name = cut_name(names[n])
    bytes = n > 1 and bytes + #name or 0
    if bytes > ROOM then
      break
    end
    told[n] = name
  end
  local id = redis.pcall('XADD', changes, 'MAXLEN', '~', LINES, '*',
    'change', change, 'fields', fields or '[]', 'names', #told > 0 and cjson.encode(told) or '[]', 'count', #names)
  if type(id) == 'table' or changed == '' then
    return
  end
  local values = {}
  for n, name in ipairs(names) do
    local is = stamps and stamps[name] or '|'
    values[2 * n - 1], values[2 * n] = cut_name(name), id .. '|' .. is .. '|' .. change
  end
  for n = 1, #values, CHUNK do
    redis.call('HSET', changed, unpack(values, n, math.min(n + CHUNK - 1, #values)))
  end
end

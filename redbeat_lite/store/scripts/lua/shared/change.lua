-- For the scripts that edit: a line of the record of changes.
local SHOWN, ROOM = 20, 500 -- names that a line shows, and bytes of those after the first
local LINES = 10000 -- lines that are kept, about

-- takes JSON of the change, JSON of its fields, and all names
-- returns the line as the last change of an entry
-- A user without the right to XADD may edit all the same. Then the record has a gap.
local function note_change(change, fields, names)
  local shown, bytes = {}, 0
  for n = 1, math.min(#names, SHOWN) do
    bytes = n > 1 and bytes + #names[n] or 0
    if bytes > ROOM then
      break
    end
    shown[n] = names[n]
  end
  local id = redis.pcall('XADD', changes, 'MAXLEN', '~', LINES, '*', 'change', change, 'fields', fields,
    'names', #shown > 0 and cjson.encode(shown) or '[]', 'count', #names)
  if type(id) == 'table' then
    id = string.format('%.0f-0', now_ms())
  end
  return id .. '|' .. change
end

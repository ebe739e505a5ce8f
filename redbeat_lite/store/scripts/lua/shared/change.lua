-- For scripts that edit.
local SHOWN, ROOM = 20, 500 -- most names in a line, and most bytes of all names but the first
local LINES = 10000 -- lines that the record keeps, about

-- Write a line of the record of changes: JSON of the change, JSON of its fields, and the names.
-- Return 'id|change', which an entry stores as its last change.
-- If an ACL forbids XADD, the edit is made all the same, and the record has a gap.
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
    id = string.format('%.0f-0', now)
  end
  return id .. '|' .. change
end

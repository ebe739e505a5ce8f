-- For scripts that edit.
local MAX_NAMES = 20 -- in a line
local MAX_BYTES = 500 -- of all names in a line but the first
local LINES = 10000 -- lines that the record keeps, about

-- Write a line of the record of changes: JSON of the change, JSON of its fields, and the names.
-- Return 'id|change', which an entry stores as its last change.
-- If an ACL forbids XADD, the edit is made all the same, and the record has a gap.
local function record_change(change, fields, names)
  local shown, bytes = {}, 0
  for n, name in ipairs(names) do
    bytes = n > 1 and bytes + #name or 0
    if n > MAX_NAMES or bytes > MAX_BYTES then
      break
    end
    shown[n] = name
  end
  local id = redis.pcall('XADD', changes, 'MAXLEN', '~', LINES, '*', 'change', change, 'fields', fields,
    'names', #shown > 0 and cjson.encode(shown) or '[]', 'count', #names)
  if type(id) == 'table' then
    id = string.format('%.0f-0', now)
  end
  return id .. '|' .. change
end

-- Return lines of the record of changes that name an entry, or are of some kinds.
-- KEYS: changes
-- ARGS: newest oldest most enough name kinds...
--   newest, oldest: ids   most: lines to search   enough: lines to find
--   kinds: beginnings of the changes of these kinds
-- returns {id of the last line searched or '', 1 more lines may follow | 0, {newest line, ...}}
local lines = redis.call('XREVRANGE', changes, newest, oldest, 'COUNT', most)
local quoted_name = cjson.encode(name)
local last_id = ''
local found = {}
for _, line in ipairs(lines) do
  if #found == tonumber(enough) then
    return {last_id, 1, found}
  end
  local id, fields = unpack(line)
  local change, names = fields[2], fields[6] or ''
  local is_found = names:find(quoted_name, 1, true)
  for _, kind in ipairs(kinds) do
    is_found = is_found or change:sub(1, #kind) == kind
  end
  if is_found then
    table.insert(found, line)
  end
  last_id = id
end
return {last_id, #lines == tonumber(most) and 1 or 0, found}

-- Return lines of the record of changes that name an entry, or are of some kinds.
-- KEYS: changes
-- ARGS: newest oldest most enough name kinds...
--   newest, oldest: ids   most: lines to search   enough: lines to find
--   kinds: beginnings of the changes of these kinds
-- returns {id of the last line searched or '', 1 more lines may follow | 0, {newest line, ...}}
local lines = redis.call('XREVRANGE', changes, newest, oldest, 'COUNT', most)
local quoted, last, found = cjson.encode(name), '', {}
for _, line in ipairs(lines) do
  if #found == tonumber(enough) then
    return {last, 1, found}
  end
  local fits = (line[2][6] or ''):find(quoted, 1, true)
  for _, kind in ipairs(kinds) do
    fits = fits or line[2][2]:sub(1, #kind) == kind
  end
  last, found[#found + 1] = line[1], fits and line or nil
end
return {last, #lines == tonumber(most) and 1 or 0, found}

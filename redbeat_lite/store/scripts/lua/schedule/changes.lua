-- Lines of the record of changes that name an entry, or tell of some kinds of changes; changes nothing. 5,000 take some 6 ms.
-- KEYS[1] record of changes
-- ARGV[1] newest id  ARGV[2] oldest id  ARGV[3] how many lines are looked at  ARGV[4] how many finds are enough
-- ARGV[5] name  ARGV[6...] what changes of the other kinds begin with, as lines have them
-- returns {id of the last line that was looked at or '', 1: there may be more | 0, {line, ...} the newest first}
local lines = redis.call('XREVRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
local name, last, found = cjson.encode(ARGV[5]), '', {}
for _, line in ipairs(lines) do
  if #found == tonumber(ARGV[4]) then
    return {last, 1, found}
  end
  local fits = (line[2][6] or ''):find(name, 1, true)
  for kind = 6, #ARGV do
    fits = fits or line[2][2]:sub(1, #ARGV[kind]) == ARGV[kind]
  end
  last, found[#found + 1] = line[1], fits and line or nil
end
return {last, #lines == tonumber(ARGV[3]) and 1 or 0, found}

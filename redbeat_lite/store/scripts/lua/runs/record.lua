-- needs now record
-- Record fates of runs (shared/record.lua). If one cannot be recorded, the others are.
-- KEYS: feed deadlines incidents rows...
-- ARGS: fates...
--   rows: for each fate, the key of its entry's rows   fates: JSON of each
-- returns {number of fates not written in full, error of the last of them}
local failed, why = 0, ''
for n, fate in ipairs(fates) do
  local _, problem = pcall(function()
    return record(rows[n], now, cjson.decode(fate))
  end)
  if problem then
    failed, why = failed + 1, type(problem) == 'table' and problem.err or tostring(problem)
  end
end
return {failed, why}

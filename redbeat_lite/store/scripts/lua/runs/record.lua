-- needs now record
-- Record the fates of runs. A fate that cannot be recorded stops no other.
-- KEYS: feed deadlines incidents rows...
-- ARGS: fates...
--   rows: of the entry of each fate   fates: as shared/record.lua has them
-- returns {how many could not be written, or not in full, the error of the last of them}
local now = now_ms()
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

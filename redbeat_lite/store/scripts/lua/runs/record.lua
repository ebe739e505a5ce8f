-- needs now record
-- Write what became of these runs, those that can be written.
-- KEYS[1] feed  [2] deadlines  [3] incidents  [n + 3] rows of the n-th one's entry
-- ARGV[n] the n-th fate, as shared/record.lua has it
-- returns {how many could not be written, or not in full, the error of the last of them}
local now = now_ms()
local failed, why = 0, ''
for n, fate in ipairs(ARGV) do
  local text = try_to_record(KEYS[n + 3], KEYS, now, fate)
  if text ~= '' then
    failed, why = failed + 1, text
  end
end
return {failed, why}

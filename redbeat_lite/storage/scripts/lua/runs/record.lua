-- needs now record
-- Write what became of these runs, those that can be written.
-- KEYS[1] feed  [n + 1] rows of the n-th one's entry   ARGV for each: the eleven of shared/record.lua
-- returns {how many could not be written, the error of the last of them}
local WIDTH = 11
local now = now_ms()
local failed, why = 0, ''
for n = 1, #ARGV / WIDTH do
  local text = try_to_record(KEYS[n + 1], KEYS[1], now, (n - 1) * WIDTH + 1)
  if text then
    failed, why = failed + 1, text
  end
end
return {failed, why}

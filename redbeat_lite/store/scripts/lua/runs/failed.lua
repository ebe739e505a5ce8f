-- Which of these entries have failed since they last succeeded; runs of backfills do not count. 5,000 take some 5 ms.
-- KEYS rows of each entry   ARGV[1] letters of outcomes  ARGV[2] the version of ids of backfills
-- returns their numbers, from 1
local found = {}
for n = 1, #KEYS do
  local decided, bad = false, false
  for _, last in ipairs({0, -1}) do  -- the newest row decides, as a rule
    local rows = decided and {} or redis.call('ZREVRANGE', KEYS[n], 0, last)
    for _, row in ipairs(rows) do
      local letter = row:match('^[^|]*|(%a)') or '?'
      local failed = ARGV[1]:find(letter, 1, true)
      if not decided and row:sub(15, 15) ~= ARGV[2] and (failed or letter == 's') then
        decided, bad = true, failed
      end
    end
  end
  found[#found + 1] = bad and n or nil
end
return found

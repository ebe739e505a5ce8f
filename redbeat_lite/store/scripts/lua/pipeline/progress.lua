-- needs step
-- Note what a step tells of its progress while it runs.
-- KEYS[1] run  [2] steps  [3] results  [4] outbox  [5] gone
-- ARGV[1] step  [2] round  [3] token  [4] percent  [5] note
local s = step_at(KEYS[2], ARGV[1])
if s.state ~= 'RUNNING' or s.round ~= tonumber(ARGV[2]) or s.token ~= ARGV[3] then
  return -- it is another copy's, or does not run any more
end
s.percent, s.note = tonumber(ARGV[4]), ARGV[5]
put_step(KEYS[2], ARGV[1], s)

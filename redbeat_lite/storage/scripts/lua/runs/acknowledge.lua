-- Note who has taken up an incident.
-- KEYS[1] incidents   ARGV[1] incident  [2] when it was opened, ms  [3] note
-- returns 1, or 0: it is not open any more
local ok, case = pcall(cjson.decode, redis.call('HGET', KEYS[1], ARGV[1]) or '')
if not ok or type(case) ~= 'table' or case.since ~= ARGV[2] then
  return 0
end
case.note = ARGV[3]
redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(case))
return 1

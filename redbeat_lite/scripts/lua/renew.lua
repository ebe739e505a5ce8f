-- Extend the leader's lease, but only for its holder; and have a look at whether the schedule is still whole.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] meta
-- ARGV[1] token  ARGV[2] term  ARGV[3] lease_ms  ARGV[4] how many entries the leader's configuration holds
-- returns 1 renewed | 2 renewed, but part of the schedule is gone or of a foreign type | 0 lost
local held = redis.call('HMGET', KEYS[1], 'token', 'term')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
-- Every write keeps the three in step. A command on a key of a foreign type answers with an error, which is a table
-- and equals nothing.
local due, entries, state =
  redis.pcall('ZCARD', KEYS[2]), redis.pcall('HLEN', KEYS[3]), redis.pcall('HLEN', KEYS[4])
local whole = due == entries and entries == state and entries >= tonumber(ARGV[4])
return (whole and redis.call('EXISTS', KEYS[5]) == 1) and 1 or 2

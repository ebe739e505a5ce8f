-- needs now step run
-- End a run before its time.
-- KEYS: run steps results gone
-- ARGS: why terminate
--   why: reason to leave out a waiting run; '': end a run that waits or runs
--   terminate: 1: kill the steps that run
-- returns 1 this call ended the run | 0 it did not | -1 there is no such run
local r = read_run()
if not r.state then
  return -1
end
if terminate == '1' then
  redis.call('HSET', run, 'revoke', 1)
end
if r.state ~= 'WAITING' and (r.state ~= 'RUNNING' or why ~= '') then
  return 0
end
if why ~= '' then
  redis.call('HSET', run, 'error', why)
end
finish(r, 'ABORTED')
return 1

-- needs now step run
-- End a run before its time.
-- KEYS: run steps results gone
-- ARGS: why terminate
--   why: reason to leave out a waiting run; '': end a run that waits or runs
--   terminate: 1: kill the steps that run
-- returns 1 this call ended the run | 0 it did not | -1 there is no such run
local this_run = read_run()
if not this_run.state then
  return -1
end
if terminate == '1' then
  redis.call('HSET', run, 'revoke', 1)
end
local may_end = this_run.state == 'WAITING' or (this_run.state == 'RUNNING' and why == '')
if not may_end then
  return 0
end
if why ~= '' then
  redis.call('HSET', run, 'error', why)
end
end_run(this_run, 'ABORTED')
return 1

-- needs now step run
-- End a run before its time.
-- KEYS: run steps results gone
-- ARGS: why terminate
--   why: reason for which a waiting run is left out; '': end a run in any state
--   terminate: 1: the steps that run are to be killed
-- returns 1 the call ended the run | 0 it had ended | -1 there is no such run
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
